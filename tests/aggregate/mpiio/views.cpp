// An unchanged program of MPI-IO: knows nothing of twinrun but the hint that turns it off. scenarios.py preloads the library. Random views
// and calls go to two files, one of them without twinrun, and everything that MPI says of both is compared.
//
// usage: mpiio_views SCENARIO FOLDER [ARGUMENT ...]; exit status 0 and "done" by rank 0 if all is as it should be.
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ahead.hpp"
#include "nonblocking.hpp"
#include "program.hpp"
#include "random_types.hpp"
#include "random_views.hpp"
#include "together.hpp"

using namespace program;
using random_types::Draw;
using random_types::Memory;
using random_types::random_memory;
using random_types::random_view;
using random_types::View;

namespace {

int transfer(MPI_File file, int kind, bool writes, MPI_Offset offset, void* buffer, int count,
             MPI_Datatype type, MPI_Status* status) {
    int code = MPI_SUCCESS;
    switch (kind) {
        case 0:
            return writes ? MPI_File_write_all(file, buffer, count, type, status)
                          : MPI_File_read_all(file, buffer, count, type, status);
        case 1:
            return writes ? MPI_File_write_at_all(file, offset, buffer, count, type, status)
                          : MPI_File_read_at_all(file, offset, buffer, count, type, status);
        case 2:
            code = writes ? MPI_File_write_all_begin(file, buffer, count, type)
                          : MPI_File_read_all_begin(file, buffer, count, type);
            if (code != MPI_SUCCESS) return code;
            return writes ? MPI_File_write_all_end(file, buffer, status)
                          : MPI_File_read_all_end(file, buffer, status);
        case 3:
            code = writes ? MPI_File_write_at_all_begin(file, offset, buffer, count, type)
                          : MPI_File_read_at_all_begin(file, offset, buffer, count, type);
            if (code != MPI_SUCCESS) return code;
            return writes ? MPI_File_write_at_all_end(file, buffer, status)
                          : MPI_File_read_at_all_end(file, buffer, status);
        case 4:
            return writes ? MPI_File_write_at(file, offset, buffer, count, type, status)
                          : MPI_File_read_at(file, offset, buffer, count, type, status);
        default:
            return writes ? MPI_File_write(file, buffer, count, type, status)
                          : MPI_File_read(file, buffer, count, type, status);
    }
}

// The kind of call that plain MPI-IO is asked for. Where a read meets the end of the file, split reads of
// Open MPI 5 never end, and collective ones count bytes that are not there.
int plainly(int kind, bool writes) {
#ifdef OPEN_MPI
    if (!writes && kind < 4) return kind % 2 == 0 ? 5 : 4;
#endif
    (void)writes;
    return kind;
}

// ROMIO of MPICH before 4.1 takes wrong offsets from file types of several subarrays (flattened_view.c shows it).
// It also gives wrong file pointers then. There random views go to twinrun alone, by collective calls with an offset,
// and are held against pread, pwrite and MPI_Pack.
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40100000
constexpr bool kPlainIsWrong = true;
#else
constexpr bool kPlainIsWrong = false;
#endif

// Rounds of one seed: each with a view or two, and some calls.
void views(std::uint64_t seed, int rounds) {
    const std::string ours = folder + "/ours";
    const std::string plain = folder + "/plain";
    long viewed[2] = {0, 0};  // views and calls, of all ranks
    for (int round = 0; round < rounds; ++round) {
        const std::uint64_t number = seed * 1000003 + static_cast<std::uint64_t>(round);
        Draw all(number * 2);
        Draw own(number * 131 + static_cast<std::uint64_t>(me) + 1);
        doing = "seed " + std::to_string(seed) + ", round " + std::to_string(round);
        if (me == 0) {
            ::unlink(ours.c_str());
            ::unlink(plain.c_str());
            ::unlink((folder + "/truth").c_str());
            ::unlink((folder + "/mask").c_str());
        }
        MPI_Barrier(MPI_COMM_WORLD);
        const char* const hints[] = {"twinrun_buffer_bytes", "twinrun_aggregators", "twinrun_block_bytes"};
        const char* const values[] = {"4096", "3", "512"};
        const int hint = all(0, 4);
        const int amode = MPI_MODE_CREATE | MPI_MODE_RDWR;
        Pair files;
        files.ours = hint < 3 ? open_file(ours, amode, false, hints[hint], values[hint])
                              : open_file(ours, amode, false);
        files.plain = open_file(plain, amode, true);
        const int truth = ::open((folder + "/truth").c_str(), O_RDWR | O_CREAT, 0666);
        const int mask = ::open((folder + "/mask").c_str(), O_WRONLY | O_CREAT, 0666);
        expect(truth >= 0 && mask >= 0, "cannot make the file truth");
        const bool reads = all.one_in(2);
        if (reads) {
            if (::ftruncate(truth, static_cast<off_t>(kSize)) != 0) stop("ftruncate");
            // So large that few views go beyond it.
            for (const MPI_File file : {files.ours, files.plain})
                well(MPI_File_set_size(file, static_cast<MPI_Offset>(kSize)), "MPI_File_set_size");
        }
        for (int v = all(1, 2); v > 0; --v) {
            const bool may_meet = reads && all.one_in(3);
            View view = random_view(all, own, may_meet, me, ranks, doing);
            ++viewed[0];
            for (const MPI_File file : {files.ours, files.plain}) {
                well(MPI_File_set_view(file, view.displacement, view.etype, view.filetype, "native",
                                       MPI_INFO_NULL),
                     "MPI_File_set_view");
            }
            same_positions(files);
            for (int call = all(1, 4); call > 0; --call) {
                int kind = all(0, 5);
                if (kPlainIsWrong) kind = kind % 2 == 0 ? 1 : 3;
                // Where ranks meet, only reads have one result.
                const bool writes = !view.meets && (!reads || all.one_in(2));
                const std::string before = doing;
                doing += ", call of kind " + std::to_string(kind) + (writes ? ", writes" : ", reads");
                MPI_Offset at = 0;
                if (kind == 1 || kind == 3 || kind == 4) {
                    at = own(0, view.most / 2);
                } else {
                    MPI_Offset now = 0;
                    MPI_File_get_position(files.plain, &now);
                    if (now > view.most / 2 || own.one_in(3)) {
                        const int to = own(0, view.most / 2);
                        MPI_File_seek(files.ours, to, MPI_SEEK_SET);
                        MPI_File_seek(files.plain, to, MPI_SEEK_SET);
                        now = to;
                    }
                    at = now;
                }
                Memory memory = random_memory(own, view.etype, view.most - static_cast<int>(at));
                Memory other = memory;
                MPI_Status here;
                MPI_Status there;
                std::memset(&here, 0, sizeof here);
                std::memset(&there, 0, sizeof there);
                if (writes) write_truth(truth, mask, view, at, memory.address(), memory.count, memory.type);
                const int one = transfer(files.ours, kind, writes, at, memory.address(), memory.count,
                                         memory.type, &here);
                int two = MPI_SUCCESS;
                if (kPlainIsWrong) {
                    if (!writes && !read_truth(truth, view, at, other.address(), other.count, other.type))
                        other.bytes = memory.bytes;
                } else {
                    two = transfer(files.plain, plainly(kind, writes), writes, at, other.address(),
                                   other.count, other.type, &there);
                }
                expect(one == MPI_SUCCESS && two == MPI_SUCCESS,
                       "results: " + text_of(one) + "; plainly: " + text_of(two));
                ++viewed[1];
                if (!kPlainIsWrong) same_status(here, there, memory.type);
                same_positions(files);
                expect(memory.bytes == other.bytes, "the bytes that were read differ, or those between them");
                MPI_Type_free(&memory.type);
                // What others wrote is read after this.
                if (all.one_in(3)) {
                    MPI_File_sync(files.ours);
                    MPI_File_sync(files.plain);
                }
                MPI_Barrier(MPI_COMM_WORLD);
                MPI_Offset sizes[2] = {0, 0};
                MPI_File_get_size(files.ours, &sizes[0]);
                MPI_File_get_size(files.plain, &sizes[1]);
                expect(kPlainIsWrong || sizes[0] == sizes[1],
                       "MPI_File_get_size: " + std::to_string(sizes[0]) + " instead of " +
                           std::to_string(sizes[1]));
                MPI_Barrier(MPI_COMM_WORLD);
                doing = before;
            }
            MPI_Type_free(&view.filetype);
        }
        MPI_File_close(&files.ours);
        MPI_File_close(&files.plain);
        ::close(truth);
        ::close(mask);
        // Holes behind the end of a file that grows are undefined: ROMIO fills them with whatever its buffers have.
        for (const std::string& path : {ours, kPlainIsWrong ? ours : plain})
            compare_files(folder + "/truth", path, folder + "/mask", reads ? kSize : 0);
    }
    MPI_Allreduce(MPI_IN_PLACE, viewed, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (me == 0) std::printf("views %ld\ncalls %ld\n", viewed[0], viewed[1]);
}

// ---- what MPI promises besides ----

// Calls with the shared file pointer, whole and split.
void ordered() {
    doing = "ordered";
    remove_files();
    Pair files = open_pair(kChange);
    for (const MPI_File file : {files.ours, files.plain})
        MPI_File_set_view(file, 100, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    for (int step = 0; step < 3; ++step) {
        const auto data = numbers((me * 7 + step * 3) % 50, step);
        const int count = static_cast<int>(data.size());
        for (const MPI_File file : {files.ours, files.plain}) {
            MPI_Status status;
            if (step == 1) {
                well(MPI_File_write_ordered_begin(file, data.data(), count, MPI_INT), "write_ordered_begin");
                well(MPI_File_write_ordered_end(file, data.data(), &status), "write_ordered_end");
            } else {
                well(MPI_File_write_ordered(file, data.data(), count, MPI_INT, &status), "write_ordered");
            }
            int got = -1;
            MPI_Get_count(&status, MPI_INT, &got);
            expect(got == count, "the count of an ordered write is " + std::to_string(got));
        }
        MPI_Offset here = -1;
        MPI_Offset there = -2;
        MPI_File_get_position_shared(files.ours, &here);
        MPI_File_get_position_shared(files.plain, &there);
        expect(here == there,
               "the shared pointer is at " + std::to_string(here) + " instead of " + std::to_string(there));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (const MPI_File file : {files.ours, files.plain})
        MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
    std::vector<int> read[2] = {std::vector<int>(20, -1), std::vector<int>(20, -1)};
    MPI_Status status;
    well(MPI_File_read_ordered(files.ours, read[0].data(), me % 5, MPI_INT, &status), "read_ordered");
    well(MPI_File_read_ordered(files.plain, read[1].data(), me % 5, MPI_INT, &status), "read_ordered");
    expect(read[0] == read[1], "an ordered read differs");
    close_pair(files);
    compare_files(folder + "/plain", folder + "/ours", "");
}

// A file that ends within what is read: the bytes that are there, and nothing else in memory.
void ends() {
    doing = "ends";
    remove_files();
    if (me == 0) {
        std::FILE* const file = std::fopen((folder + "/ours").c_str(), "wb");
        for (int i = 0; i < 1001; ++i)
            std::fputc(i % 251, file);
        std::fclose(file);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File file = open_file(folder + "/ours", MPI_MODE_RDONLY, false);
    // 8 bytes of each rank in turns.
    MPI_Datatype tile = MPI_DATATYPE_NULL;
    MPI_Datatype view = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(8, MPI_BYTE, &tile);
    MPI_Type_create_resized(tile, 0, 8 * ranks, &view);
    MPI_Type_commit(&view);
    MPI_File_set_view(file, 8 * me, MPI_BYTE, view, "native", MPI_INFO_NULL);
    int expected = 0;
    for (int i = 0; i < 1001; ++i)
        expected += i / 8 % ranks == me ? 1 : 0;
    std::vector<unsigned char> bytes(2000, 0xEE);
    MPI_Status status;
    int got = -1;
    well(MPI_File_read_all(file, bytes.data(), 2000, MPI_BYTE, &status), "MPI_File_read_all");
    MPI_Get_count(&status, MPI_BYTE, &got);
    expect(got == expected,
           std::to_string(got) + " bytes read, and " + std::to_string(expected) + " are there");
    for (int i = 0; i < 2000; ++i) {
        const int place = (i / 8 * ranks + me) * 8 + i % 8;
        const int wanted = i < expected ? place % 251 : 0xEE;
        expect(bytes[static_cast<std::size_t>(i)] == wanted, "byte " + std::to_string(i) + " is wrong");
    }
    MPI_Offset here = 0;
    MPI_File_get_position(file, &here);
    expect(here == 2000,
           "the file pointer is at " + std::to_string(here) + " after 2000 bytes were asked for");
    well(MPI_File_read_all(file, bytes.data(), 16, MPI_BYTE, &status), "MPI_File_read_all");
    MPI_Get_count(&status, MPI_BYTE, &got);
    expect(got == 0, "bytes behind the end");
    MPI_Type_free(&tile);
    MPI_Type_free(&view);
    MPI_File_close(&file);
}

// A split read of a file in atomic mode is plain MPI-IO. It ends where the file does.
void split_read_at_the_end() {
    doing = "split_read_at_the_end";
    remove_files();
    Pair files = open_pair(kChange);
    well(MPI_File_set_size(files.ours, 100), "MPI_File_set_size");
    well(MPI_File_set_atomicity(files.ours, 1), "MPI_File_set_atomicity");
    std::vector<char> bytes(400, 1);
    MPI_Status status;
    const int most = 150 + me;
    // How many bytes the status then counts, and where the pointer is, differs between MPI libraries.
    well(MPI_File_read_at_all_begin(files.ours, 0, bytes.data(), most, MPI_BYTE), "read_at_all_begin");
    well(MPI_File_read_at_all_end(files.ours, bytes.data(), &status), "read_at_all_end");
    expect(bytes[0] == 0 && bytes[99] == 0 && bytes[100] == 1, "what read_at_all_begin read");
    bytes.assign(bytes.size(), 1);
    well(MPI_File_read_all_begin(files.ours, bytes.data(), most, MPI_BYTE), "read_all_begin");
    well(MPI_File_read_all_end(files.ours, bytes.data(), &status), "read_all_end");
    expect(bytes[0] == 0 && bytes[99] == 0 && bytes[100] == 1, "what read_all_begin read");
    close_pair(files);
}

// Independent calls see what collective ones wrote, and the other way round; atomic mode, sizes, other data representations.
void mixed() {
    doing = "mixed";
    remove_files();
    Pair files = open_pair(kChange);
    const auto data = numbers(100, 1);
    const int next = (me + 1) % ranks;
    for (const MPI_File file : {files.ours, files.plain}) {
        for (const int atomic : {0, 1}) {
            well(MPI_File_set_atomicity(file, atomic), "MPI_File_set_atomicity");
            const MPI_Offset base = 4 * 100 * ranks * atomic;
            well(MPI_File_write_at_all(file, base + 400 * me, data.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
                 "write_at_all");
            MPI_Barrier(MPI_COMM_WORLD);
            std::vector<int> read(100, -1);
            well(MPI_File_read_at(file, base + 400 * next, read.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
                 "read_at");
            expect(read[5] == 1000003 + next * 10007 + 5, "a read of what another rank wrote");
            const auto mine = numbers(100, 2);
            MPI_Barrier(MPI_COMM_WORLD);
            well(MPI_File_write_at(file, base + 400 * me, mine.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
                 "write_at");
            MPI_Barrier(MPI_COMM_WORLD);
            well(MPI_File_read_at_all(file, base + 400 * next, read.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
                 "read_at_all");
            expect(read[5] == 2000006 + next * 10007 + 5,
                   "a collective read of what another rank wrote alone");
        }
        well(MPI_File_set_atomicity(file, 0), "MPI_File_set_atomicity");
        // A file that is cut between two calls of the same shape.
        well(MPI_File_set_size(file, 0), "MPI_File_set_size");
        MPI_Barrier(MPI_COMM_WORLD);
        well(MPI_File_write_at_all(file, 400 * me, data.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
             "write_at_all");
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Offset size = 0;
        MPI_File_get_size(file, &size);
        expect(size == 400 * ranks,
               (file == files.ours ? "ours: " : "plain: ") + std::to_string(size) + " bytes");
        MPI_Barrier(MPI_COMM_WORLD);
        // No rank has data.
        well(MPI_File_write_all(file, nullptr, 0, MPI_INT, MPI_STATUS_IGNORE), "write_all of nothing");
        // One rank only.
        well(MPI_File_write_at_all(file, 400 * ranks, data.data(), me == ranks - 1 ? 100 : 0, MPI_INT,
                                   MPI_STATUS_IGNORE),
             "write_at_all of one rank");
        MPI_Info info = MPI_INFO_NULL;
        well(MPI_File_get_info(file, &info), "MPI_File_get_info");
        MPI_Info_free(&info);
    }
    close_pair(files);
    compare_files(folder + "/plain", folder + "/ours", "");
}

// Where all ranks write the same bytes MPI leaves open which stay, and it is no error.
void overlaps() {
    doing = "overlaps";
    remove_files();
    MPI_File file = open_file(folder + "/ours", kChange, false);
    const auto same = std::vector<int>(1000, 42);
    well(MPI_File_write_at_all(file, 0, same.data(), 1000, MPI_INT, MPI_STATUS_IGNORE),
         "write_at_all of the same");
    MPI_Barrier(MPI_COMM_WORLD);
    std::vector<int> read(1000, 0);
    well(MPI_File_read_at_all(file, 0, read.data(), 1000, MPI_INT, MPI_STATUS_IGNORE), "read_at_all");
    expect(read == same, "what all ranks wrote is not there");
    MPI_File_close(&file);
}

int called = 0;
void handler(MPI_File*, int* code, ...) { called = *code; }

// Errors of one rank are errors of all, by the file's error handler, and the file can be used again.
void errors() {
    doing = "errors";
    remove_files();
    MPI_File file = open_file(folder + "/ours", kChange, false);
    const auto data = numbers(100, 1);
    const auto fails = [&](int code, const char* what) {
        expect(code != MPI_SUCCESS, std::string(what) + ": no error");
        if (me != ranks - 1)
            expect(text_of(code).find("rank " + std::to_string(ranks - 1)) != std::string::npos,
                   text_of(code));
    };
    const bool last = me == ranks - 1;
    fails(MPI_File_write_at_all(file, 400 * me, data.data(), last ? -1 : 100, MPI_INT, MPI_STATUS_IGNORE),
          "a negative count");
    fails(MPI_File_write_at_all(file, last ? -8 : 400 * me, data.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
          "a negative offset");
    MPI_Errhandler own = MPI_ERRHANDLER_NULL;
    MPI_File_create_errhandler(handler, &own);
    MPI_File_set_errhandler(file, own);
    MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    const int code =
        MPI_File_write_at_all(file, 100 * me, data.data(), last ? 3 : 4, MPI_BYTE, MPI_STATUS_IGNORE);
    fails(code, "a part of an etype");
    expect(called == code, "the file's error handler was not called");
    well(MPI_File_write_at_all(file, 100 * me, data.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
         "the next call");
    // Storage that refuses.
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 100000;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const int refused =
        MPI_File_write_at_all(file, 100000 + 100 * me, data.data(), 100, MPI_INT, MPI_STATUS_IGNORE);
    expect(refused != MPI_SUCCESS, "a write that the system refuses");
    limit.rlim_cur = before;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    MPI_Barrier(MPI_COMM_WORLD);
    well(MPI_File_write_at_all(file, 100 * me, data.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
         "the call after that");
    MPI_File_close(&file);
    // Not allowed: MPI's own affair (Open MPI 5 gives the error to the aggregating rank alone). Nothing is written.
    const auto before_it = me == 0 ? contents(folder + "/ours") : std::vector<unsigned char>();
    file = open_file(folder + "/ours", MPI_MODE_RDONLY, false);
    const auto zeros = std::vector<int>(100, 0);
    MPI_File_write_at_all(file, 400 * me, zeros.data(), 100, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    MPI_Barrier(MPI_COMM_WORLD);
    expect(me != 0 || contents(folder + "/ours") == before_it, "a file for reading was changed");
    // A program may call the second half of a split call whose first one has failed.
    file = open_file(folder + "/ours", kChange, false);
    const auto some = std::vector<int>(100, 0);
    const int begun =
        MPI_File_write_at_all_begin(file, 400 * me, some.data(), me == ranks - 1 ? -1 : 100, MPI_INT);
    expect(begun != MPI_SUCCESS, "a split call with a negative count");
    expect(MPI_File_write_at_all_end(file, some.data(), MPI_STATUS_IGNORE) != MPI_SUCCESS, "its second half");
    well(MPI_File_write_at_all_begin(file, 400 * me, some.data(), 100, MPI_INT), "the next split call");
    well(MPI_File_write_at_all_end(file, some.data(), MPI_STATUS_IGNORE), "and its second half");
    MPI_File_close(&file);
    MPI_Errhandler_free(&own);
}

void modes() {
    doing = "modes";
    remove_files();
    const auto data = numbers(10, 1);
    for (int round = 0; round < 2; ++round) {
        Pair files = open_pair(kChange | MPI_MODE_APPEND);
        same_positions(files);
        MPI_Offset at = 0;
        MPI_File_get_position(files.plain, &at);
        expect(at == 40 * ranks * round, "MPI_MODE_APPEND begins at " + std::to_string(at));
        for (const MPI_File file : {files.ours, files.plain}) {
            MPI_File_seek(file, 40 * me, MPI_SEEK_CUR);
            well(MPI_File_write_all(file, data.data(), 10, MPI_INT, MPI_STATUS_IGNORE), "write_all");
        }
        same_positions(files);
        close_pair(files);
        compare_files(folder + "/plain", folder + "/ours", "");
    }
    MPI_File file = open_file(folder + "/ours", MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, false);
    well(MPI_File_write_at_all(file, 40 * me, data.data(), 10, MPI_INT, MPI_STATUS_IGNORE), "write_at_all");
    MPI_File_close(&file);
    MPI_Barrier(MPI_COMM_WORLD);
    expect(::access((folder + "/ours").c_str(), F_OK) != 0, "MPI_MODE_DELETE_ON_CLOSE left the file");
#ifdef ROMIO_VERSION
    const std::string prefix = "ufs:";
#else
    const std::string prefix;
#endif
    file = open_file(prefix + folder + "/ours", kChange | MPI_MODE_EXCL, false);
    well(MPI_File_write_at_all(file, 40 * me, data.data(), 10, MPI_INT, MPI_STATUS_IGNORE), "write_at_all");
    MPI_File_close(&file);
    // Renamed while it is open: calls go to the file, not to the name.
    file = open_file(folder + "/ours", MPI_MODE_RDWR, false);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) expect(::rename((folder + "/ours").c_str(), (folder + "/other").c_str()) == 0, "rename");
    MPI_Barrier(MPI_COMM_WORLD);
    well(MPI_File_write_at_all(file, 40 * me, numbers(10, 9).data(), 10, MPI_INT, MPI_STATUS_IGNORE),
         "write_at_all");
    MPI_File_close(&file);
    MPI_Barrier(MPI_COMM_WORLD);
    expect(::access((folder + "/ours").c_str(), F_OK) != 0, "a new file has the old name");
    expect(contents(folder + "/other").size() == static_cast<std::size_t>(40 * ranks),
           "the renamed file's size");
}

// A rank comes late because it waits for a message that only another rank's MPI can send on.
void late() {
    doing = "late";
    remove_files();
    MPI_File file = open_file(folder + "/ours", kChange, false);
    const auto data = numbers(10, 1);
    std::vector<char> message(std::size_t{16} << 20, 'm');
    for (int round = 0; round < 3; ++round) {
        MPI_Request request = MPI_REQUEST_NULL;
        const int size = static_cast<int>(message.size());
        if (me == 0 && ranks > 1)
            MPI_Isend(message.data(), size, MPI_BYTE, ranks - 1, 7, MPI_COMM_WORLD, &request);
        if (me == ranks - 1 && ranks > 1)
            MPI_Recv(message.data(), size, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        well(MPI_File_write_at_all(file, 40 * me, data.data(), 10, MPI_INT, MPI_STATUS_IGNORE),
             "write_at_all");
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_File_close(&file);
}

// Hints that are wrong, or differ: plain MPI-IO, and that is said.
void hints() {
    doing = "hints";
    const auto data = numbers(10, 1);
    for (const int round : {0, 1, 2}) {
        remove_files();
        const char* const names[] = {"twinrun_agregators", "twinrun_buffers", "twinrun_aggregators"};
        const char* const values[] = {"3", "many", me == 0 ? "1" : "2"};
        MPI_File file = open_file(folder + "/ours", kChange, false, names[round], values[round]);
        well(MPI_File_write_at_all(file, 40 * me, data.data(), 10, MPI_INT, MPI_STATUS_IGNORE),
             "write_at_all");
        MPI_File_close(&file);
        MPI_Barrier(MPI_COMM_WORLD);
        expect(contents(folder + "/ours").size() == static_cast<std::size_t>(40 * ranks), "the size");
    }
}

// The last rank stops for good before a call: the others get an error.
void die() {
    doing = "die";
    remove_files();
    std::vector<int> processes(static_cast<std::size_t>(ranks));
    const int own = static_cast<int>(::getpid());
    MPI_Allgather(&own, 1, MPI_INT, processes.data(), 1, MPI_INT, MPI_COMM_WORLD);
    MPI_File file = open_file(folder + "/ours", kChange, false, "twinrun_time_limit", "1");
    const auto data = numbers(10, 1);
    well(MPI_File_write_at_all(file, 40 * me, data.data(), 10, MPI_INT, MPI_STATUS_IGNORE), "write_at_all");
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == ranks - 1) ::raise(SIGSTOP);
    const int code = MPI_File_write_at_all(file, 40 * me, data.data(), 10, MPI_INT, MPI_STATUS_IGNORE);
    const std::string text = text_of(code);
    const std::string path = folder + "/survivor-" + std::to_string(me);
    std::FILE* const said = std::fopen((path + ".part").c_str(), "w");
    std::fputs(text.c_str(), said);
    std::fclose(said);
    ::rename((path + ".part").c_str(), path.c_str());  // who sees it may read all of it
    // The first rank waits until all others have said so, and then ends the job. Where another one
    // ended, mpiexec would end the first before it has said anything.
    while (me != 0)
        ::pause();
    for (int rank = 1; rank < ranks - 1; ++rank) {
        while (::access((folder + "/survivor-" + std::to_string(rank)).c_str(), F_OK) != 0)
            ::sched_yield();
    }
    ::kill(processes.back(), SIGKILL);
    ::raise(SIGKILL);
}

// New files on a file system that is Lustre, as statfs of this program says. scenarios.py knows what is asked for.
void stripes() {
    doing = "stripes";
    const auto data = numbers(10, 1);
    const auto write = [&](const std::string& place, const std::string& name, int amode, const char* factor,
                           const char* unit) {
        if (me == 0) ::mkdir((folder + place).c_str(), 0777);
        MPI_Barrier(MPI_COMM_WORLD);
        const std::string path = folder + place + name;
        MPI_Info info = MPI_INFO_NULL;
        MPI_Info_create(&info);
        MPI_Info_set(info, factor, "3");
        MPI_Info_set(info, unit, "131072");
        MPI_File file = MPI_FILE_NULL;
        well(MPI_File_open(MPI_COMM_WORLD, path.c_str(), amode, info, &file), "MPI_File_open");
        MPI_Info_free(&info);
        well(MPI_File_write_at_all(file, 40 * me, data.data(), 10, MPI_INT, MPI_STATUS_IGNORE),
             "write_at_all");
        MPI_File_close(&file);
        MPI_Barrier(MPI_COMM_WORLD);
        expect(contents(path).size() == static_cast<std::size_t>(40 * ranks), "the size");
        MPI_Barrier(MPI_COMM_WORLD);
    };
    const std::string here = "/is-lustre";
    write(here, "/own", kChange, "striping_factor", "striping_unit");
    // It is there already, and stays as it is.
    write(here, "/own", kChange, "striping_factor", "striping_unit");
    write(here, "/named", kChange, "twinrun_striping_factor", "twinrun_striping_unit");
    write(here, "/refused", kChange, "striping_factor", "striping_unit");
    // Left to MPI; and what is not on Lustre.
    write(here, "/new", kChange | MPI_MODE_EXCL, "striping_factor", "striping_unit");
    write("/other", "/own", kChange, "striping_factor", "striping_unit");
    // MPI's keys with values that are none.
    MPI_Info info = MPI_INFO_NULL;
    MPI_Info_create(&info);
    MPI_Info_set(info, "striping_factor", "many");
    MPI_File file = MPI_FILE_NULL;
    well(MPI_File_open(MPI_COMM_WORLD, (folder + here + "/none").c_str(), kChange, info, &file),
         "MPI_File_open");
    MPI_Info_free(&info);
    MPI_File_close(&file);
}

#if MPI_VERSION >= 4
void large() {
    doing = "large";
    remove_files();
    Pair files = open_pair(kChange);
    const auto data = numbers(100, 1);
    for (const MPI_File file : {files.ours, files.plain}) {
        MPI_Datatype view = MPI_DATATYPE_NULL;
        const MPI_Count lengths[] = {2, 1};
        const MPI_Count places[] = {0, 16};
        // Holes of a file that grows are undefined.
        well(MPI_File_set_size(file, 4096 * ranks), "MPI_File_set_size");
        MPI_Datatype tile = MPI_DATATYPE_NULL;
        MPI_Type_create_hindexed_c(2, lengths, places, MPI_INT, &tile);
        MPI_Type_create_resized_c(tile, 0, MPI_Count{32} * ranks, &view);
        MPI_Type_commit(&view);
        well(MPI_File_set_view(file, 32 * me, MPI_INT, view, "native", MPI_INFO_NULL), "MPI_File_set_view");
        well(MPI_File_write_all_c(file, data.data(), MPI_Count{99}, MPI_INT, MPI_STATUS_IGNORE),
             "write_all_c");
        std::vector<int> read(99, 0);
        well(MPI_File_read_at_all_c(file, 0, read.data(), MPI_Count{99}, MPI_INT, MPI_STATUS_IGNORE),
             "read_at_all_c");
        expect(std::equal(read.begin(), read.end(), data.begin()), "read_at_all_c");
        MPI_Type_free(&tile);
        MPI_Type_free(&view);
    }
    close_pair(files);
    compare_files(folder + "/plain", folder + "/ours", "");
}
#else
void large() {}
#endif

}  // namespace

int main(int argc, char** argv) {
    const std::string scenario = argc > 1 ? argv[1] : "";
    if (scenario.starts_with("nonblocking")) {
        int provided = MPI_THREAD_SINGLE;
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
        expect(provided == MPI_THREAD_MULTIPLE, "MPI has no MPI_THREAD_MULTIPLE");
    } else {
        MPI_Init(&argc, &argv);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3) stop("usage: mpiio_views SCENARIO FOLDER [ARGUMENT ...]");
    folder = argv[2];
    const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
    if (scenario == "views") {
        views(static_cast<std::uint64_t>(number(3, 1)), number(4, 20));
    } else if (scenario == "semantics") {
        ordered();
        ends();
        mixed();
        split_read_at_the_end();
        overlaps();
        errors();
        modes();
        late();
        hints();
        large();
        nonblocking_without_threads();
    } else if (scenario == "ahead") {
        pieces_that_are_read();
        descriptors_of_closed_files();
        changes_before_a_read();
    } else if (scenario == "together") {
        files_that_are_limited();
        writes_of_one_rank_for_all();
    } else if (scenario == "stripes") {
        stripes();
    } else if (scenario == "nonblocking_views") {
        nonblocking_views(static_cast<std::uint64_t>(number(3, 1)), number(4, 20));
    } else if (scenario == "nonblocking_semantics") {
        nonblocking_semantics();
    } else if (scenario == "die") {
        die();
    } else {
        stop("there is no scenario " + scenario);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) std::puts("done");
    MPI_Finalize();
    return 0;
}
