// Scenarios: storage, memory or a rank fails, or somebody else changes files.
#include <mpi.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "declarations.hpp"
#include "faults.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

// Storage fails on one rank, at one call after the other: it says so, the others say who, the old file stays, and the next write is
// well again.
void storage(const std::string& folder, const std::string& function, const std::string& backend, bool sync,
             bool direct) {
    const std::string path = folder + "/data";
    ::setenv("TWINRUN_AGGREGATE_DIRECT", direct ? "1" : "never", 1);
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.backend = backend.c_str();
    options.aggregators = 2;
    options.buffer_bytes = 4096;
    options.sync = sync ? 1 : 0;
    twr_aggregate* const aggregate = made(options);
    const Sample old(2000, 1);
    const Sample sample(2000, 2);
    well(old.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()), "write");
    has_file(path, old.file);
    int reached = 0;
    for (int who = 0; who < ranks; ++who) {
        for (int after = 0; after < 40; after += 1 + after / 3) {
            doing =
                "storage " + function + " of rank " + std::to_string(who) + " after " + std::to_string(after);
            if (function ==
                "limit") {  // a file size limit, which no function in front of the system's can take away
                if (me == who) {
                    const rlimit limit{static_cast<rlim_t>(4096 * after + 100), RLIM_INFINITY};
                    ::signal(SIGXFSZ, SIG_IGN);
                    expect(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
                }
            } else {
                faults::fail(me == who ? function : "", after, function == "write" ? ENOSPC : EIO);
            }
            const bool reads = function == "read";
            Sample back(2000, 2);
            const int status = reads ? twr_aggregate_read(aggregate, path.c_str(), back.data.data())
                                     : twr_aggregate_write(aggregate, path.c_str(), sample.data.data());
            int hit = me == who && (function == "limit" ? status != TWR_OK : faults::failed()) ? 1 : 0;
            MPI_Bcast(&hit, 1, MPI_INT, who, MPI_COMM_WORLD);
            faults::fail("", 0, 0);
            if (function == "limit" && me == who) {
                const rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
                expect(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
            }
            if (hit == 0) {
                well(status, "the call");
                if (!reads) {
                    has_file(path, sample.file);
                    well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()),
                         "write of the old data");
                }
                break;
            }
            ++reached;
            std::vector<std::string> words;
            if (function == "write") words = {"No space left on device", "offset"};
            if (function == "fsync" || function == "open" || function == "read")
                words = {"Input/output error"};
            // The folder is synced when the file is in its place, which stays so.
            const bool folder_only =
                function == "fsync" && std::strstr(twr_error_message(), "/data") == nullptr;
            words.push_back(folder_only ? folder : "/data");
            fails_on(who, status, function == "write" ? TWR_ERROR_NO_SPACE : TWR_ERROR_IO, words);
            has_file(path, folder_only ? sample.file : old.file);
            if (folder_only)
                well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()), "write of the old data");
        }
    }
    expect(reached > 0, "no rank ever came to " + function);
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    has_file(path, sample.file);
    twr_aggregate_free(aggregate);
}

// Somebody takes the partial file's name away while it is written: what is there then stays, and what was at the path.
void stolen(const std::string& folder, bool sync) {
    namespace fs = std::filesystem;
    const std::string path = folder + "/data";
    const std::vector<std::uint8_t> own(1000, 0x55);
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = 1;
    options.sync = sync ? 1 : 0;
    ::setenv("TWINRUN_AGGREGATE_DIRECT", "never", 1);
    twr_aggregate* const aggregate = made(options);
    const Sample old(500, 1);
    const Sample sample(500, 2);
    well(old.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()), "write");
    has_file(path, old.file);
    std::string name;
    const auto partial = [&] {
        for (const auto& entry : fs::directory_iterator(folder))
            if (entry.path().filename().string().find(".twr-partial.") != std::string::npos)
                return entry.path().string();
        return std::string();
    };
    // At the first write, on whichever rank it is.
    faults::act("write", [&] {
        name = partial();
        fs::rename(name, folder + "/moved");
        put_contents(name, own);
    });
    const int status = twr_aggregate_write(aggregate, path.c_str(), sample.data.data());
    faults::act("", nullptr);
    fails_on(0, status, TWR_ERROR_IO, {"data.twr-partial.", "somebody renamed, removed or replaced it"});
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        same_bytes(contents(path), old.file, path);
        const std::string there = partial();
        expect(!there.empty(), "somebody's file is gone");
        same_bytes(contents(there), own, there);
        ::unlink(there.c_str());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    // A folder comes to the path: it is not exchanged away.
    faults::act("write", [&] {
        ::unlink(path.c_str());
        fs::create_directory(path);
        put_contents(path + "/notes", own);
    });
    const int again = twr_aggregate_write(aggregate, path.c_str(), sample.data.data());
    faults::act("", nullptr);
    expect(again != TWR_OK, "a folder was replaced");
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        same_bytes(contents(path + "/notes"), own, path + "/notes");
        expect_no_partial(folder);
    }
    twr_aggregate_free(aggregate);
}

// The path is a symbolic link: a write replaces it, an update goes to the file that it names; nothing is made at a place that only a
// link tells of.
void links(const std::string& folder, const std::string& backend) {
    const std::string path = folder + "/data";
    const std::string elsewhere = folder + "/elsewhere";
    const std::vector<std::uint8_t> own(1000, 0x55);
    const auto linked = [&](bool dangling) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (me == 0) {
            ::unlink(path.c_str());
            ::unlink(elsewhere.c_str());
            if (!dangling) put_contents(elsewhere, own);
            expect(::symlink("elsewhere", path.c_str()) == 0, "symlink");
        }
        MPI_Barrier(MPI_COMM_WORLD);
    };
    const auto by_one = [](const std::function<void()>& what) {
        if (me == 0) what();
        MPI_Barrier(MPI_COMM_WORLD);
    };
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.backend = backend.c_str();
    const Sample sample(500);
    for (const bool sync : {false, true}) {
        options.update = 0;
        options.sync = sync ? 1 : 0;
        twr_aggregate* const writer = made(options);
        well(sample.declare(writer), "declare");
        for (const bool dangling : {false, true}) {
            doing = std::string("links, write") + (sync ? ", sync" : "") + (dangling ? ", dangling" : "");
            linked(dangling);
            well(twr_aggregate_write(writer, path.c_str(), sample.data.data()), "write");
            has_file(path, sample.file);
            by_one([&] {
                expect(!std::filesystem::is_symlink(path), "the link is still there");
                expect(there(elsewhere) != dangling, "what the link named came or went");
                if (!dangling) same_bytes(contents(elsewhere), own, elsewhere);
            });
        }
        twr_aggregate_free(writer);
        options.update = 1;
        twr_aggregate* const updater = made(options);
        well(sample.declare(updater), "declare");
        doing = std::string("links, update") + (sync ? ", sync" : "");
        linked(true);
        fails_on(0, twr_aggregate_write(updater, path.c_str(), sample.data.data()),
                 TWR_ERROR_INVALID_ARGUMENT, {path, "symbolic link"});
        by_one([&] { expect(!there(elsewhere), "a file was made where a link told"); });
        linked(false);
        well(twr_aggregate_write(updater, path.c_str(), sample.data.data()), "update");
        by_one([&] {
            expect(std::filesystem::is_symlink(path), "an update replaced the link");
            same_bytes(contents(elsewhere), sample.file, elsewhere);
        });
        twr_aggregate_free(updater);
    }
}

// The last rank is killed on its way, or stops for good: then the others come out of the call with an error, and end what stopped. What
// was there stays.
void die(const std::string& folder, const std::string& how, const std::string& where,
         const std::string& way) {
    const std::string path = folder + "/data";
    ::setenv("TWINRUN_AGGREGATE_DIRECT", "never", 1);
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = ranks;  // one of them the rank that dies
    options.buffer_bytes = 4096;
    const Sample sample(3000, 1);
    // What was there is of a job without such a limit, which on a busy machine the living exceed too.
    twr_aggregate* const before = made(options);
    well(sample.declare(before), "declare");
    well(twr_aggregate_write(before, path.c_str(), sample.data.data()), "write");
    twr_aggregate_free(before);
    // By either of the two ways to set it.
    if (where == "before") {
        ::setenv("TWINRUN_AGGREGATE_TIME_LIMIT", "1", 1);
    } else {
        options.time_limit = 1;
    }
    options.update = way == "update" ? 1 : 0;
    twr_aggregate* const aggregate = made(options);
    well(sample.declare(aggregate), "declare");
    const int who = ranks - 1;
    stopped_file = folder + "/stopped-" + std::to_string(me);
    const Sample next(3000, 2);
    std::vector<const void*> data(next.data.begin(), next.data.end());
    int process = ::getpid();
    MPI_Bcast(&process, 1, MPI_INT, who, MPI_COMM_WORLD);
    if (me == who) {
        const int last = how == "kill" ? SIGKILL : SIGSTOP;
        if (where == "before") ::kill(::getpid(), last);
        if (where == "write") faults::fail("write", 2, how == "kill" ? faults::kKill : faults::kStop);
        if (where == "gather") {  // its array ends where no memory is
            const std::uint64_t bytes = 4 * 3000;
            auto* const memory = static_cast<char*>(
                ::mmap(nullptr, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            ::mprotect(memory + 2 * 4096, 2 * 4096, PROT_NONE);
            data[0] = memory + 2 * 4096 - bytes / 2;
            ::signal(
                SIGSEGV, how == "kill" ? [](int) { ::kill(::getpid(), SIGKILL); }
                                       : [](int) { ::kill(::getpid(), SIGSTOP); });
        }
    }
    int status = TWR_OK;
    if (way == "background") {
        status = twr_aggregate_write_begin(aggregate, path.c_str(), data.data());
        if (status == TWR_OK) status = twr_aggregate_wait(aggregate);
    } else {
        status = twr_aggregate_write(aggregate, path.c_str(), data.data());
    }
    if (me == who) stop("the rank that was to die lives");
    if (status != TWR_ERROR_OTHER_RANK) stop("status " + std::to_string(status) + ": " + twr_error_message());
    const std::string message = twr_error_message();
    // Nothing collective works any more, and says so at once.
    fails(twr_aggregate_write(aggregate, path.c_str(), data.data()), TWR_ERROR_OTHER_RANK, {});
    twr_aggregate_free(aggregate);
    // By files: what is printed just before the end may be lost, and MPI may not work any more.
    const std::string name = folder + "/survivor-";
    put_contents(name + std::to_string(me) + ".tmp", {message.begin(), message.end()});
    ::rename((name + std::to_string(me) + ".tmp").c_str(), (name + std::to_string(me)).c_str());
    for (int rank = 0; rank < ranks - 1; ++rank) {
        while (!there(name + std::to_string(rank)))
            ::usleep(1000);
    }
    if (me == 0) ::kill(process, SIGKILL);
    ::_exit(0);
}

// What die() wrote first, by another job.
void again(const std::string& folder) {
    const std::string path = folder + "/data";
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    const Sample sample(3000, 1);
    well(sample.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) same_bytes(contents(path), sample.file, path);  // beside what the dead left
    twr_aggregate_free(aggregate);
}

// One rank has no memory for one thing, at one place after the other: it says so, the others say who at once, not when the time is
// up; the aggregate works on, or all say that it does not.
void memory(const std::string& folder, const std::string& what) {
    const std::string path = folder + "/data";
    ::setenv("TWINRUN_AGGREGATE_DIRECT", "20000", 1);  // the dense blocks go directly, the rest is gathered
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = 2;
    options.buffer_bytes = 4096;
    options.time_limit = 60;
    const Sample old(3000, 1);
    const Sample sample(3000, 2);
    const std::uint64_t sizes[] = {4, 8};
    int reached = 0;
    int broken = 0;
    for (const int who : {0, ranks - 1}) {
        for (long after = 0;; after += 1 + after / 24) {
            doing = "memory " + what + " of rank " + std::to_string(who) + " after " + std::to_string(after);
            twr_aggregate* aggregate = nullptr;
            if (what != "create") {
                aggregate = made(options);
                well(old.declare(aggregate), "declare");
                well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()), "write");
            }
            Sample back(3000, 1);
            std::vector<void*> data = what == "read" ? back.data : sample.data;
            faults::fail_allocation(me == who ? after : -1);
            int status = TWR_OK;
            if (what == "create") status = twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options);
            if (what == "declare") status = sample.declare(aggregate);
            if (what == "records") {
                status = twr_aggregate_declare_records(aggregate, sizes, 2, 3000, TWR_RECORDS, 0);
            }
            if (what == "write") status = twr_aggregate_write(aggregate, path.c_str(), data.data());
            if (what == "read") status = twr_aggregate_read(aggregate, path.c_str(), data.data());
            int hit = faults::allocation_failed() ? 1 : 0;
            faults::fail_allocation(-1);
            int well_there = status == TWR_OK ? 1 : 0;
            MPI_Bcast(&hit, 1, MPI_INT, who, MPI_COMM_WORLD);
            MPI_Bcast(&well_there, 1, MPI_INT, who, MPI_COMM_WORLD);
            if (well_there != 0) {  // not hit, or it could do without
                well(status, "the call");
                if (what == "write") has_file(path, sample.file);
            } else {
                ++reached;
                fails_on(who, status, TWR_ERROR_OUT_OF_MEMORY, {"memory"});
                const std::string said = twr_error_message();
                expect(said.find("time_limit") == std::string::npos, said);
                expect((aggregate == nullptr) == (what == "create"), "an aggregate after an error");
                if (what != "create") has_file(path, old.file);
            }
            if (aggregate != nullptr) {
                // Now it works for all, or for none.
                int good = sample.declare(aggregate) == TWR_OK ? 1 : 0;
                if (good != 0)
                    good = twr_aggregate_write(aggregate, path.c_str(), sample.data.data()) == TWR_OK;
                int all_good = 0;
                int any_good = 0;
                MPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
                MPI_Allreduce(&good, &any_good, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
                expect(all_good == any_good, "it works on some ranks only");
                if (good != 0) has_file(path, sample.file);
                if (good == 0) {
                    ++broken;
                    const std::string said = twr_error_message();
                    expect(said.find("memory") != std::string::npos, said);
                    expect(said.find("time_limit") == std::string::npos, said);
                }
                twr_aggregate_free(aggregate);
            }
            if (hit == 0) break;
        }
    }
    expect(reached > 4, "memory was never short");
    if (me == 0) std::printf("%d errors, %d of them broke the aggregate\n", reached, broken);
}

}  // namespace aggregate_ranks
