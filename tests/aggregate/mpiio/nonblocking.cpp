#include "nonblocking.hpp"

#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program.hpp"

namespace program {

namespace {

using random_types::Draw;
using random_types::Memory;
using random_types::random_memory;
using random_types::random_view;

int begin(MPI_File file, bool pointer, bool writes, MPI_Offset offset, void* buffer, int count,
          MPI_Datatype type, MPI_Request* request) {
    if (pointer) {
        return writes ? MPI_File_iwrite_all(file, buffer, count, type, request)
                      : MPI_File_iread_all(file, buffer, count, type, request);
    }
    return writes ? MPI_File_iwrite_at_all(file, offset, buffer, count, type, request)
                  : MPI_File_iread_at_all(file, offset, buffer, count, type, request);
}

// The same by calls that block, for the file that is plain MPI-IO's: a read of Open MPI 5 that meets the end of
// the file is right only where it is independent.
int plainly(MPI_File file, bool pointer, bool writes, MPI_Offset offset, void* buffer, int count,
            MPI_Datatype type, MPI_Status* status) {
    if (pointer) {
        return writes ? MPI_File_write_all(file, buffer, count, type, status)
                      : MPI_File_read(file, buffer, count, type, status);
    }
    return writes ? MPI_File_write_at_all(file, offset, buffer, count, type, status)
                  : MPI_File_read_at(file, offset, buffer, count, type, status);
}

// A call that is under way, and what plain MPI-IO said of it.
struct Begun {
    Memory memory;
    Memory other;
    MPI_Datatype counted = MPI_DATATYPE_NULL;  // the type, after the program has freed its own
    MPI_Status plain;
};

// The ways of a program to complete its requests.
constexpr int kWays = 7;
void complete(int way, std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses) {
    const int count = static_cast<int>(requests.size());
    int index = MPI_UNDEFINED;
    int ended = 0;
    MPI_Status status;
    std::memset(&status, 0, sizeof status);
    std::vector<int> indices(requests.size());
    std::vector<MPI_Status> some(requests.size());
    switch (way) {
        case 0:
            for (int i = count - 1; i >= 0; --i) {
                const auto at = static_cast<std::size_t>(i);
                well(MPI_Wait(&requests[at], &statuses[at]), "MPI_Wait");
            }
            return;
        case 1: well(MPI_Waitall(count, requests.data(), statuses.data()), "MPI_Waitall"); return;
        case 2:
            for (int i = 0; i < count; ++i) {
                const auto at = static_cast<std::size_t>(i);
                for (ended = 0; ended == 0; ::sched_yield()) {
                    well(MPI_Request_get_status(requests[at], &ended, &statuses[at]),
                         "MPI_Request_get_status");
                }
                well(MPI_Test(&requests[at], &ended, &statuses[at]), "MPI_Test");
                expect(ended != 0 && requests[at] == MPI_REQUEST_NULL, "a request that has ended");
            }
            return;
        case 3:
            while (ended == 0) {
                well(MPI_Testall(count, requests.data(), &ended, statuses.data()), "MPI_Testall");
                ::sched_yield();
            }
            return;
        case 4:
            while (MPI_Waitany(count, requests.data(), &index, &status) == MPI_SUCCESS &&
                   index != MPI_UNDEFINED)
                statuses[static_cast<std::size_t>(index)] = status;
            return;
        default: break;
    }
    while (true) {
        int got = 0;
        well(way == 5 ? MPI_Waitsome(count, requests.data(), &got, indices.data(), some.data())
                      : MPI_Testsome(count, requests.data(), &got, indices.data(), some.data()),
             "MPI_Waitsome or MPI_Testsome");
        if (got == MPI_UNDEFINED) return;
        for (int i = 0; i < got; ++i) {
            const auto at = static_cast<std::size_t>(i);
            statuses[static_cast<std::size_t>(indices[at])] = some[at];
        }
        ::sched_yield();
    }
}

// Files of a round, their views, and where the round's random numbers come from.
struct Round {
    Draw all;  // the same on all ranks
    Draw own;
    Pair files;
    int truth = -1;
    int mask = -1;
    bool reads = false;
};

// One of the calls of a batch: its bytes are in slot `number` of `slots` of the view, so that calls that are under way
// together have none in common.
void begin_call(Round& round, const View& view, bool writes, int number, int slots, Begun& call,
                MPI_Request* request) {
    const int slot = view.most / slots;
    const bool pointer = round.all.one_in(2);
    const MPI_Offset at = slot * number + round.own(0, slot / 2);
    if (pointer) {
        MPI_File_seek(round.files.ours, at, MPI_SEEK_SET);
        MPI_File_seek(round.files.plain, at, MPI_SEEK_SET);
    }
    call.memory = random_memory(round.own, view.etype, slot * (number + 1) - static_cast<int>(at));
    call.other = call.memory;
    MPI_Type_dup(call.memory.type, &call.counted);
    Memory& memory = call.memory;
    if (writes) {
        write_truth(round.truth, round.mask, view, at, memory.address(), memory.count, memory.type);
    }
    well(begin(round.files.ours, pointer, writes, at, memory.address(), memory.count, memory.type, request),
         "a nonblocking call");
    expect(memory.count == 0 || *request != MPI_REQUEST_NULL, "there is no request");
    well(plainly(round.files.plain, pointer, writes, at, call.other.address(), call.other.count, call.counted,
                 &call.plain),
         "a plain call");
    // ROMIO writes bytes between those of a rank back as it read them: other ranks may not write them meanwhile.
    MPI_Barrier(MPI_COMM_WORLD);
    // The pointer has moved, whether the call has ended or not.
    same_positions(round.files);
    MPI_Type_free(&memory.type);
}

// Some calls under way together, and a message between ranks beside them. Then all end.
void batch(Round& round, const View& view, long& calls) {
    const bool writes = !view.meets && (!round.reads || round.all.one_in(2));
    const int slots = round.all(1, 4);
    doing += ", " + std::to_string(slots) + (writes ? " writes" : " reads");
    std::vector<Begun> begun(static_cast<std::size_t>(slots));
    for (Begun& call : begun)
        std::memset(&call.plain, 0, sizeof call.plain);
    // After the calls' own requests: a message to the next rank, one from the one before, and none.
    const auto messages = begun.size();
    std::vector<MPI_Request> requests(messages + 3, MPI_REQUEST_NULL);
    std::vector<MPI_Status> statuses(requests.size());
    std::memset(statuses.data(), 0, statuses.size() * sizeof(MPI_Status));
    const int sent = me;
    int got = -1;
    MPI_Irecv(&got, 1, MPI_INT, (me + ranks - 1) % ranks, 5, MPI_COMM_WORLD, &requests[messages]);
    for (int i = 0; i < slots; ++i) {
        const auto at = static_cast<std::size_t>(i);
        begin_call(round, view, writes, i, slots, begun[at], &requests[at]);
    }
    MPI_Isend(&sent, 1, MPI_INT, (me + 1) % ranks, 5, MPI_COMM_WORLD, &requests[messages + 1]);
    const int way = round.own(0, kWays - 1);
    doing += ", completed in way " + std::to_string(way);
    if (round.all.one_in(4)) well(MPI_File_sync(round.files.ours), "MPI_File_sync");
    complete(way, requests, statuses);
    expect(got == (me + ranks - 1) % ranks, "the message");
    for (std::size_t i = 0; i < begun.size(); ++i) {
        same_status(statuses[i], begun[i].plain, begun[i].counted);
        expect(begun[i].memory.bytes == begun[i].other.bytes, "the bytes that were read differ");
        MPI_Type_free(&begun[i].counted);
        ++calls;
    }
}

void one_round(std::uint64_t number, long (&done)[2]) {
    const std::string ours = folder + "/ours";
    const std::string plain = folder + "/plain";
    Round round{Draw(number * 2), Draw(number * 131 + static_cast<std::uint64_t>(me) + 1), {}, -1, -1, false};
    if (me == 0) {
        for (const char* const name : {"/ours", "/plain", "/truth", "/mask"})
            ::unlink((folder + name).c_str());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const bool small = round.all.one_in(2);
    round.files.ours = open_file(ours, kChange, false, small ? "twinrun_buffer_bytes" : nullptr, "4096");
    round.files.plain = open_file(plain, kChange, true);
    round.truth = ::open((folder + "/truth").c_str(), O_WRONLY | O_CREAT, 0666);
    round.mask = ::open((folder + "/mask").c_str(), O_WRONLY | O_CREAT, 0666);
    expect(round.truth >= 0 && round.mask >= 0, "cannot make the file truth");
    round.reads = round.all.one_in(2);
    if (round.reads) {
        // So large that few views go beyond it.
        if (::ftruncate(round.truth, static_cast<off_t>(kSize)) != 0) stop("ftruncate");
        for (const MPI_File file : {round.files.ours, round.files.plain})
            well(MPI_File_set_size(file, static_cast<MPI_Offset>(kSize)), "MPI_File_set_size");
    }
    for (int v = round.all(1, 2); v > 0; --v) {
        View view = random_view(round.all, round.own, round.reads && round.all.one_in(3), me, ranks, doing);
        ++done[0];
        for (const MPI_File file : {round.files.ours, round.files.plain}) {
            well(MPI_File_set_view(file, view.displacement, view.etype, view.filetype, "native",
                                   MPI_INFO_NULL),
                 "MPI_File_set_view");
        }
        for (int calls = round.all(1, 3); calls > 0; --calls) {
            const std::string before = doing;
            batch(round, view, done[1]);
            // What others wrote is read after this.
            MPI_File_sync(round.files.ours);
            MPI_File_sync(round.files.plain);
            MPI_Barrier(MPI_COMM_WORLD);
            doing = before;
        }
        MPI_Type_free(&view.filetype);
    }
    close_pair(round.files);
    ::close(round.truth);
    ::close(round.mask);
    for (const std::string& path : {ours, plain})
        compare_files(folder + "/truth", path, folder + "/mask", round.reads ? kSize : 0);
}

}  // namespace

void nonblocking_views(std::uint64_t seed, int rounds) {
    long done[2] = {0, 0};  // views and calls, of all ranks
    for (int round = 0; round < rounds; ++round) {
        doing = "seed " + std::to_string(seed) + ", round " + std::to_string(round);
        one_round(seed * 1000003 + static_cast<std::uint64_t>(round), done);
    }
    MPI_Allreduce(MPI_IN_PLACE, done, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (me == 0) std::printf("views %ld\ncalls %ld\n", done[0], done[1]);
}

// ---- what MPI promises besides ----

namespace {

MPI_File open_ours() { return open_file(folder + "/ours", kChange, false); }

void wait_well(MPI_Request& request, int expected, const char* what) {
    MPI_Status status;
    well(MPI_Wait(&request, &status), what);
    int got = -1;
    MPI_Get_count(&status, MPI_INT, &got);
    expect(got == expected, std::string(what) + ": the count is " + std::to_string(got));
}

// The ints of this rank at `place`, and those of the next one.
void expect_written(MPI_File file, int place, int salt) {
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    const int next = (me + 1) % ranks;
    std::vector<int> read(100, -1);
    well(MPI_File_read_at(file, 4 * (place + 100 * next), read.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
         "MPI_File_read_at");
    for (int i = 0; i < 100; ++i) {
        expect(read[static_cast<std::size_t>(i)] == salt * 1000003 + next * 10007 + i,
               "what the next rank wrote is not there");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// Calls return at once: a rank makes one before it sends what another rank waits for before its own.
void returns_at_once() {
    doing = "returns_at_once";
    remove_files();
    MPI_File file = open_ours();
    const auto data = numbers(100, 1);
    for (int step = 0; step < 3; ++step) {
        MPI_Request request = MPI_REQUEST_NULL;
        int token = 0;
        if (me > 0) MPI_Recv(&token, 1, MPI_INT, me - 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        well(MPI_File_iwrite_at_all(file, 400 * (ranks * step + me), data.data(), 100, MPI_INT, &request),
             "iwrite_at_all");
        if (me < ranks - 1) MPI_Send(&token, 1, MPI_INT, me + 1, 9, MPI_COMM_WORLD);
        wait_well(request, 100, "MPI_Wait");
        expect_written(file, 100 * ranks * step, 1);
    }
    MPI_File_close(&file);
}

// Half of the ranks make the calls of two files in another order than the others.
void two_files() {
    doing = "two_files";
    remove_files();
    std::array<MPI_File, 2> files{open_ours(), open_file(folder + "/plain", kChange, false)};
    const auto data = numbers(100, 2);
    std::array<MPI_Request, 4> requests{};
    for (const int i : {0, 1, 2, 3}) {
        const int which = (me + i) % 2;
        well(MPI_File_iwrite_at_all(files[static_cast<std::size_t>(which)], 400 * (ranks * (i / 2) + me),
                                    data.data(), 100, MPI_INT, &requests[static_cast<std::size_t>(i)]),
             "iwrite_at_all");
    }
    // Both files' blocking calls follow, and wait for those before them.
    for (const MPI_File file : files) {
        well(
            MPI_File_write_at_all(file, 400 * (ranks * 2 + me), data.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
            "write_at_all");
        for (const int part : {0, 1, 2})
            expect_written(file, 100 * ranks * part, 2);
    }
    well(MPI_Waitall(4, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    for (MPI_File& file : files)
        MPI_File_close(&file);
}

// Every other collective call of the file comes after those that are under way, also where a program should have
// waited itself.
void others_follow() {
    doing = "others_follow";
    remove_files();
    MPI_File file = open_ours();
    const auto data = numbers(100, 3);
    MPI_Request request = MPI_REQUEST_NULL;
    const auto write = [&](const char* what) {
        doing = std::string("others_follow, ") + what;
        MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
        well(MPI_File_seek(file, 100 * me, MPI_SEEK_SET), "MPI_File_seek");
        well(MPI_File_iwrite_all(file, data.data(), 100, MPI_INT, &request), "iwrite_all");
    };
    write("set_view");
    well(MPI_File_set_view(file, 1000, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "MPI_File_set_view");
    wait_well(request, 100, "MPI_Wait");
    MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    expect_written(file, 0, 3);
    write("set_size");
    well(MPI_File_set_size(file, 4), "MPI_File_set_size");
    MPI_Offset size = 0;
    MPI_File_get_size(file, &size);
    expect(size == 4, "the size is " + std::to_string(size));
    wait_well(request, 100, "MPI_Wait");
    MPI_Barrier(MPI_COMM_WORLD);
    write("set_atomicity");
    well(MPI_File_set_atomicity(file, 1), "MPI_File_set_atomicity");
    wait_well(request, 100, "MPI_Wait");
    // Now a call is MPI-IO's.
    well(MPI_File_iwrite_at_all(file, 100 * (ranks + me), data.data(), 100, MPI_INT, &request),
         "iwrite_at_all in atomic mode");
    wait_well(request, 100, "MPI_Wait");
    expect_written(file, 100 * ranks, 3);
    well(MPI_File_set_atomicity(file, 0), "MPI_File_set_atomicity");
    write("write_ordered");
    well(MPI_File_seek_shared(file, 100 * ranks, MPI_SEEK_SET), "MPI_File_seek_shared");
    well(MPI_File_write_ordered(file, data.data(), 100, MPI_INT, MPI_STATUS_IGNORE), "write_ordered");
    wait_well(request, 100, "MPI_Wait");
    MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    expect_written(file, 0, 3);
    expect_written(file, 100 * ranks, 3);
    write("close");
    well(MPI_File_close(&file), "MPI_File_close");
    wait_well(request, 100, "MPI_Wait");
    file = open_ours();
    expect_written(file, 0, 3);
    MPI_File_close(&file);
}

// All ranks write the same bytes: MPI-IO's affair, as every rank learns after the call.
void overlapping() {
    doing = "overlapping";
    remove_files();
    MPI_File file = open_ours();
    const auto same = std::vector<int>(1000, 42);
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Type_contiguous(1000, MPI_INT, &type);
    MPI_Type_commit(&type);
    for (int step = 0; step < 2; ++step) {
        well(MPI_File_iwrite_all(file, same.data(), 1, type, &request), "iwrite_all of the same");
        if (step == 1) MPI_Type_free(&type);
        MPI_Offset at = 0;
        MPI_File_get_position(file, &at);
        expect(at == 4000 * (step + 1), "the file pointer is at " + std::to_string(at));
        wait_well(request, 1000, "MPI_Wait");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    std::vector<int> read(1000, 0);
    well(MPI_File_iread_at_all(file, 4000, read.data(), 1000, MPI_INT, &request), "iread_at_all");
    wait_well(request, 1000, "MPI_Wait");
    expect(read == same, "what all ranks wrote is not there");
    MPI_File_close(&file);
}

int handled = 0;
void handler(MPI_File*, int* code, ...) { handled = *code; }

// A bad argument is the error of its rank, at once. The other ranks' calls go on.
void bad_arguments() {
    doing = "bad_arguments";
    remove_files();
    MPI_File file = open_ours();
    const auto data = numbers(100, 4);
    const bool last = me == ranks - 1;
    MPI_Request request = MPI_REQUEST_NULL;
    for (const int step : {0, 1}) {
        const int code = MPI_File_iwrite_at_all(file, last && step == 1 ? -8 : 400 * me, data.data(),
                                                last && step == 0 ? -1 : 100, MPI_INT, &request);
        expect((code == MPI_SUCCESS) == !last, "the result is " + text_of(code));
        expect((request == MPI_REQUEST_NULL) == last, "there is a request, or there is none");
        if (!last) wait_well(request, 100, "MPI_Wait");
    }
    well(MPI_File_iwrite_at_all(file, 400 * me, data.data(), 100, MPI_INT, &request), "iwrite_at_all");
    wait_well(request, 100, "MPI_Wait");
    expect_written(file, 0, 4);
    MPI_File_close(&file);
}

// Errors of requests that MPI cannot assign to a file are returned: they are those of one of these communicators.
class ErrorsReturn {
   public:
    ErrorsReturn() { set(MPI_ERRORS_RETURN); }
    ~ErrorsReturn() { set(MPI_ERRORS_ARE_FATAL); }
    ErrorsReturn(const ErrorsReturn&) = delete;
    ErrorsReturn& operator=(const ErrorsReturn&) = delete;

   private:
    static void set(MPI_Errhandler to) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, to);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, to);
    }
};

// MPICH 4.0 has other texts for codes that a program adds.
bool knows_own_texts() {
    int code = 0;
    MPI_Add_error_code(MPI_ERR_IO, &code);
    MPI_Add_error_string(code, "a text of its own");
    return text_of(code) == "a text of its own";
}

// Storage that refuses: the request has the error, on all ranks.
void refused() {
    doing = "refused";
    remove_files();
    MPI_File file = open_ours();
    const auto data = numbers(100, 5);
    MPI_Errhandler own = MPI_ERRHANDLER_NULL;
    MPI_File_create_errhandler(handler, &own);
    MPI_File_set_errhandler(file, own);
    std::optional<ErrorsReturn> returns(std::in_place);
    // The plan is made before: memory that ranks share may be a file too, for which the limit counts.
    MPI_Request first = MPI_REQUEST_NULL;
    well(MPI_File_iwrite_at_all(file, 400 * me, data.data(), 100, MPI_INT, &first), "iwrite_at_all");
    wait_well(first, 100, "MPI_Wait");
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 100000;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Status statuses[2];
    well(MPI_File_iwrite_at_all(file, 100000 + 400 * me, data.data(), 100, MPI_INT, &requests[0]),
         "iwrite_at_all");
    const int code = MPI_Wait(&requests[0], &statuses[0]);
    expect(code != MPI_SUCCESS, "a write that the system refuses");
    expect(handled == code, "the file's error handler was not called");
    expect(!knows_own_texts() || text_of(code).find("twinrun_mpiio") != std::string::npos, text_of(code));
    well(MPI_File_iwrite_at_all(file, 100000 + 400 * me, data.data(), 100, MPI_INT, &requests[0]),
         "iwrite_at_all");
    well(MPI_File_iwrite_at_all(file, 400 * me, data.data(), 100, MPI_INT, &requests[1]), "iwrite_at_all");
    expect(MPI_Waitall(2, requests, statuses) == MPI_ERR_IN_STATUS, "MPI_Waitall of one that failed");
    // MPICH says no more than that of the rest, which it has not looked at.
    expect(statuses[0].MPI_ERROR != MPI_SUCCESS &&
               (statuses[1].MPI_ERROR == MPI_SUCCESS || statuses[1].MPI_ERROR == MPI_ERR_PENDING),
           "the statuses' errors");
    well(MPI_Wait(&requests[1], MPI_STATUS_IGNORE), "MPI_Wait");
    limit.rlim_cur = before;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    returns.reset();
    expect_written(file, 0, 5);
    MPI_File_close(&file);
    MPI_Errhandler_free(&own);
}

// No data on any rank, on one, and more than is there.
void little() {
    doing = "little";
    remove_files();
    MPI_File file = open_ours();
    const auto data = numbers(100, 6);
    MPI_Request request = MPI_REQUEST_NULL;
    well(MPI_File_iwrite_all(file, nullptr, 0, MPI_INT, &request), "iwrite_all of nothing");
    wait_well(request, 0, "MPI_Wait");
    const bool last = me == ranks - 1;
    well(MPI_File_iwrite_at_all(file, 0, data.data(), last ? 100 : 0, MPI_INT, &request),
         "iwrite_at_all of one rank");
    wait_well(request, last ? 100 : 0, "MPI_Wait");
    MPI_Barrier(MPI_COMM_WORLD);
    std::vector<int> read(300, -1);
    well(MPI_File_iread_at_all(file, 0, read.data(), 300, MPI_INT, &request), "iread_at_all");
    wait_well(request, 100, "MPI_Wait");
    expect(read[99] == 6000018 + 10007 * (ranks - 1) + 99 && read[100] == -1, "what was read");
    MPI_File_close(&file);
}

// Of the library, in this process: also those that its thread has made.
int threads() {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream comm(entry.path() / "comm");
        std::string name;
        if (std::getline(comm, name) && name == "twinrun_mpiio") ++count;
    }
    return count;
}

// No thread can be made: the system has no memory for such a stack.
class NoThreads {
   public:
    NoThreads() {
        ::pthread_getattr_default_np(&before_);
        pthread_attr_t attributes;
        ::pthread_attr_init(&attributes);
        ::pthread_attr_setstacksize(&attributes, std::size_t{1} << 46);
        expect(::pthread_setattr_default_np(&attributes) == 0, "pthread_setattr_default_np");
        ::pthread_attr_destroy(&attributes);
    }
    ~NoThreads() {
        ::pthread_setattr_default_np(&before_);
        ::pthread_attr_destroy(&before_);
    }
    NoThreads(const NoThreads&) = delete;
    NoThreads& operator=(const NoThreads&) = delete;

   private:
    pthread_attr_t before_;
};

// Every int of `ranks` + 1: a view with holes, which no rank writes directly.
void set_interleaved_view(MPI_File file) {
    MPI_Datatype every = MPI_DATATYPE_NULL;
    MPI_Type_create_resized(MPI_INT, 0, 4 * (ranks + 1), &every);
    MPI_Type_commit(&every);
    MPI_File_set_view(file, 4 * me, MPI_INT, every, "native", MPI_INFO_NULL);
    MPI_Type_free(&every);
}

// A file that is closed leaves no thread behind. Where no thread can be made, the call itself does all. Storage needs
// one too if there are several windows, so that there is an error, and no rank waits; one window needs none.
void threads_end() {
    doing = "threads_end";
    const auto data = numbers(100, 7);
    const auto windows = numbers(400'000, 7);
    MPI_Request request = MPI_REQUEST_NULL;
    for (const bool may : {true, false}) {
        remove_files();
        MPI_File file = open_ours();
        well(MPI_File_write_at_all(file, 400 * me, data.data(), 100, MPI_INT, MPI_STATUS_IGNORE),
             "write_at_all");
        const int before = threads();
        if (!may) {
            const ErrorsReturn returns;
            set_interleaved_view(file);
            {
                const NoThreads none;
                well(MPI_File_iwrite_at_all(file, 0, windows.data(), 400'000, MPI_INT, &request),
                     "iwrite_at_all of windows");
                expect(threads() == before, "there is a thread");
                const int code = MPI_Wait(&request, MPI_STATUS_IGNORE);
                expect(code != MPI_SUCCESS, "a write without threads");
                well(MPI_File_iwrite_at_all(file, 0, data.data(), 100, MPI_INT, &request), "iwrite_at_all");
                wait_well(request, 100, "one window without threads");
                expect(threads() == before, "there is a thread");
            }
            MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
        }
        well(MPI_File_iwrite_at_all(file, 400 * me, data.data(), 100, MPI_INT, &request), "iwrite_at_all");
        wait_well(request, 100, "MPI_Wait");
        expect_written(file, 0, 7);
        expect(threads() == before + 1, "the file has a thread");
        MPI_File_close(&file);
        expect(threads() == before, "a thread is left");
    }
}

#if MPI_VERSION >= 4
void large_counts() {
    doing = "large_counts";
    remove_files();
    MPI_File file = open_ours();
    const auto data = numbers(100, 8);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_File_set_view(file, 400 * me, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    well(MPI_File_iwrite_all_c(file, data.data(), MPI_Count{100}, MPI_INT, &request), "iwrite_all_c");
    wait_well(request, 100, "MPI_Wait");
    std::vector<int> read(100, 0);
    well(MPI_File_iread_at_all_c(file, 0, read.data(), MPI_Count{100}, MPI_INT, &request), "iread_at_all_c");
    wait_well(request, 100, "MPI_Wait");
    expect(read == data, "iread_at_all_c");
    MPI_File_close(&file);
}
#else
void large_counts() {}
#endif

}  // namespace

void nonblocking_semantics() {
    returns_at_once();
    two_files();
    others_follow();
    overlapping();
    bad_arguments();
    refused();
    little();
    threads_end();
    large_counts();
}

void nonblocking_without_threads() {
    doing = "nonblocking_without_threads";
    remove_files();
    MPI_File file = open_ours();
    const auto data = numbers(100, 9);
    for (int step = 0; step < 2; ++step) {
        MPI_Request request = MPI_REQUEST_NULL;
        well(MPI_File_iwrite_at_all(file, 400 * me, data.data(), 100, MPI_INT, &request), "iwrite_at_all");
        wait_well(request, 100, "MPI_Wait");
    }
    expect_written(file, 0, 9);
    MPI_File_close(&file);
}

}  // namespace program
