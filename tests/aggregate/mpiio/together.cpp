#include "together.hpp"

#include <mpi.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "program.hpp"
#include "random_types.hpp"

namespace program {

namespace {

using random_types::Draw;
using Bytes = std::vector<unsigned char>;

// Files that this process writes may have so many bytes.
class FileLimit {
   public:
    explicit FileLimit(rlim_t bytes) {
        ::signal(SIGXFSZ, SIG_IGN);
        ::getrlimit(RLIMIT_FSIZE, &before_);
        rlimit limit = before_;
        limit.rlim_cur = bytes;
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
    FileLimit(const FileLimit&) = delete;
    FileLimit& operator=(const FileLimit&) = delete;

   private:
    rlimit before_{};
};

bool one_node() {
    MPI_Comm node = MPI_COMM_NULL;
    int here = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &here);
    MPI_Comm_free(&node);
    return here == ranks;
}

// What a rank writes in a round. All ranks know it of all, and so what the file must be.
struct Write {
    MPI_Offset at = 0;
    int count = 0;
    int stride = 1;  // between its bytes in the file; 2: every second one
};

unsigned char value_of(int rank, int round, int i) {
    return static_cast<unsigned char>(1 + (rank * 71 + round * 13 + i * 7) % 255);
}

void put(Bytes& model, const Write& write, int rank, int round) {
    if (write.count == 0) return;
    const auto end = static_cast<std::size_t>(write.at + (write.count - 1) * write.stride + 1);
    model.resize(std::max(model.size(), end));
    for (int i = 0; i < write.count; ++i)
        model[static_cast<std::size_t>(write.at + i * write.stride)] = value_of(rank, round, i);
}

int write_it(MPI_File file, const Write& write, int round) {
    Bytes data;
    for (int i = 0; i < write.count; ++i)
        data.push_back(value_of(me, round, i));
    if (write.stride == 1)
        return MPI_File_write_at_all(file, write.at, data.data(), write.count, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_Datatype spread = MPI_DATATYPE_NULL;
    MPI_Type_vector(write.count, 1, write.stride, MPI_BYTE, &spread);
    MPI_Type_commit(&spread);
    MPI_File_set_view(file, write.at, MPI_BYTE, spread, "native", MPI_INFO_NULL);
    const int code = MPI_File_write_at_all(file, 0, data.data(), write.count, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    MPI_Type_free(&spread);
    return code;
}

void expect_file(const std::string& path, const Bytes& model) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        const Bytes there = contents(path);
        expect(there.size() == model.size(),
               std::to_string(there.size()) + " bytes instead of " + std::to_string(model.size()));
        for (std::size_t at = 0; at < model.size(); ++at)
            expect(there[at] == model[at], "the byte at " + std::to_string(at));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// Patterns that repeat for a while; then another one, of which a rank may have nothing.
void patterns(const std::string& path) {
    MPI_File file = open_file(path, MPI_MODE_CREATE | MPI_MODE_RDWR, false);
    Draw draw(5);  // the same on all ranks
    Bytes model;
    int round = 0;
    for (int pattern = 0; pattern < 12; ++pattern) {
        std::vector<Write> writes(static_cast<std::size_t>(ranks));
        const int stride = draw.one_in(3) ? 2 : 1;
        MPI_Offset end = draw(0, 500);
        for (Write& write : writes) {
            write = {end, draw.one_in(6) ? 0 : draw(1, 700), stride};
            end += MPI_Offset{write.count} * stride + (draw.one_in(2) ? draw(1, 40) : 0);
        }
        const MPI_Offset step = draw.one_in(3) ? 0 : draw(1, 3000);
        for (int repeat = 0; repeat < 6; ++repeat, ++round) {
            doing = "writes of one rank for all, round " + std::to_string(round);
            const Write& own = writes[static_cast<std::size_t>(me)];
            well(write_it(file, own, round), "write_at_all");
            for (int rank = 0; rank < ranks; ++rank)
                put(model, writes[static_cast<std::size_t>(rank)], rank, round);
            // What another rank wrote is there at once.
            const Write& other = writes[static_cast<std::size_t>((me + 1) % ranks)];
            if (other.count != 0) {
                unsigned char last = 0;
                const MPI_Offset at = other.at + MPI_Offset{other.count - 1} * other.stride;
                well(MPI_File_read_at(file, at, &last, 1, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
                expect(last == model[static_cast<std::size_t>(at)], "the last byte of the next rank");
            }
            MPI_Barrier(MPI_COMM_WORLD);  // before it is written again
            for (Write& write : writes)
                write.at += step;
            if (draw.one_in(8)) {
                Bytes data(100);
                well(MPI_File_read_at_all(file, 10 * me, data.data(), 100, MPI_BYTE, MPI_STATUS_IGNORE),
                     "read_at_all");
            }
        }
        // The call of one rank is none: the others get an error, and nothing is written.
        if (pattern % 4 == 3) {
            doing = "a negative count of one rank";
            const Write& own = writes[static_cast<std::size_t>(me)];
            const Bytes data(static_cast<std::size_t>(own.count) + 1, 0);
            const int code = MPI_File_write_at_all(
                file, own.at, data.data(), me == ranks - 1 ? -1 : own.count, MPI_BYTE, MPI_STATUS_IGNORE);
            expect(code != MPI_SUCCESS, "no error");
        }
    }
    MPI_File_close(&file);
    expect_file(path, model);
}

// Rank 0 writes, and nobody else: the others could not.
void by_rank_0(const std::string& path) {
    doing = "writes by rank 0";
    MPI_File file = open_file(path, MPI_MODE_CREATE | MPI_MODE_RDWR, false);
    Bytes model;
    int round = 0;
    const auto write_all = [&](int first) {
        const Write own{first + 300 * me + 7000 * round, 300, 1};
        const int code = write_it(file, own, round);
        if (code == MPI_SUCCESS) {
            for (int rank = 0; rank < ranks; ++rank)
                put(model, {first + 300 * rank + 7000 * round, 300, 1}, rank, round);
        }
        ++round;
        return code;
    };
    well(write_all(0), "the first call, which makes a plan");
    if (one_node() && ranks > 1) {
        const FileLimit limit(me == 0 ? RLIM_INFINITY : 0);
        for (int i = 0; i < 5; ++i)
            well(write_all(0), "a call that rank 0 alone can do");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    doing = "writes that rank 0 cannot do";
    {
        const FileLimit limit(me == 0 ? static_cast<rlim_t>(model.size()) : RLIM_INFINITY);
        MPI_Barrier(MPI_COMM_WORLD);
        if (one_node()) {
            expect(write_all(0) != MPI_SUCCESS, "no error");
            expect(write_all(0) != MPI_SUCCESS, "no error the second time");
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    doing = "writes after an error";
    for (int i = 0; i < 3; ++i)
        well(write_all(0), "write_at_all");
    MPI_File_close(&file);
    expect_file(path, model);
}

}  // namespace

void writes_of_one_rank_for_all() {
    patterns(folder + "/patterns");
    by_rank_0(folder + "/by-rank-0");
}

void files_that_are_limited() {
    int number = 0;
    for (const int who : {-1, 0, ranks - 1}) {
        for (const bool before_open : {true, false}) {
            doing = "a limit of 1 MB for files, of rank " + std::to_string(who);
            const std::string path = folder + "/limited-" + std::to_string(number++);
            const rlim_t bytes = who < 0 || who == me ? rlim_t{1} << 20 : RLIM_INFINITY;
            MPI_File file = MPI_FILE_NULL;
            Bytes model;
            {
                const FileLimit limit(before_open ? bytes : RLIM_INFINITY);
                MPI_Barrier(MPI_COMM_WORLD);
                file = open_file(path, MPI_MODE_CREATE | MPI_MODE_RDWR, false);
            }
            {
                const FileLimit limit(bytes);
                for (int round = 0; round < 3; ++round) {
                    well(write_it(file, {1000 * round + 100 * me, 100, 1}, round), "write_at_all");
                    for (int rank = 0; rank < ranks; ++rank)
                        put(model, {1000 * round + 100 * rank, 100, 1}, rank, round);
                }
                MPI_Barrier(MPI_COMM_WORLD);
            }
            well(write_it(file, {5000 + 100 * me, 100, 1}, 9), "write_at_all");
            for (int rank = 0; rank < ranks; ++rank)
                put(model, {5000 + 100 * rank, 100, 1}, rank, 9);
            MPI_File_close(&file);
            expect_file(path, model);
        }
    }
}

}  // namespace program
