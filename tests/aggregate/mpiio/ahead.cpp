#include "ahead.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "program.hpp"
#include "random_types.hpp"

namespace program {

namespace {

using random_types::Draw;

constexpr int kBytes = 100000;

// By rank 0: the byte at n of the file.
unsigned char byte_at(MPI_Offset n) { return static_cast<unsigned char>(n * 31 + n / 251); }

void make_file(const std::string& path) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        std::FILE* const file = std::fopen(path.c_str(), "wb");
        if (file == nullptr) stop("cannot make " + path);
        for (MPI_Offset n = 0; n < kBytes; ++n)
            std::fputc(byte_at(n), file);
        std::fclose(file);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// What a read of `count` bytes from `at` on must have done. data: longer than that, 'u' before the read.
void expect_bytes(const std::vector<unsigned char>& data, MPI_Offset at, int count, MPI_Status& status) {
    const int there = static_cast<int>(std::clamp<MPI_Offset>(kBytes - at, 0, count));
    int got = -1;
    MPI_Get_count(&status, MPI_BYTE, &got);
    expect(got == there, std::to_string(got) + " bytes instead of " + std::to_string(there));
    for (int i = 0; i < static_cast<int>(data.size()); ++i) {
        const unsigned char right = i < there ? byte_at(at + i) : 'u';
        expect(data[static_cast<std::size_t>(i)] == right, "the byte at " + std::to_string(at + i));
    }
}

}  // namespace

void pieces_that_are_read() {
    doing = "pieces that are read";
    const std::string path = folder + "/ahead";
    make_file(path);
    MPI_File file = open_file(path, MPI_MODE_RDONLY, false);
    Draw draw(17 + static_cast<std::uint64_t>(me));
    MPI_Offset pointer = 0;
    for (int round = 0; round < 40; ++round) {
        doing = "pieces that are read, round " + std::to_string(round);
        // Some ranks have nothing to read, and some read beyond the end.
        const int count = draw.one_in(4) ? 0 : draw(1, 3000);
        const auto at = MPI_Offset{draw(0, kBytes + 1000)};
        std::vector<unsigned char> data(static_cast<std::size_t>(count) + 10, 'u');
        MPI_Status status;
        if (round % 3 == 0) {
            well(MPI_File_read_all(file, data.data(), count, MPI_BYTE, &status), "read_all");
            expect_bytes(data, pointer, count, status);
            pointer += count;
        } else {
            well(MPI_File_read_at_all(file, at, data.data(), count, MPI_BYTE, &status), "read_at_all");
            expect_bytes(data, at, count, status);
        }
    }
    MPI_File_close(&file);

    // One rank's data is not one piece, in some of the calls. The others have read in vain then.
    file = open_file(folder + "/ahead", MPI_MODE_RDONLY, false);
    MPI_Datatype every_second = MPI_DATATYPE_NULL;
    MPI_Type_vector(50, 1, 2, MPI_BYTE, &every_second);
    MPI_Type_commit(&every_second);
    for (int round = 0; round < 40; ++round) {
        doing = "pieces and others that are read, round " + std::to_string(round);
        const MPI_Offset at = 500 * me + round;
        std::vector<unsigned char> data(100, 'u');
        MPI_Status status;
        if (me == ranks - 1 && round % 5 < 3) {
            well(MPI_File_read_at_all(file, at, data.data(), 1, every_second, &status), "read_at_all");
            for (int i = 0; i < 100; ++i)
                expect(data[static_cast<std::size_t>(i)] == (i % 2 == 0 ? byte_at(at + i / 2) : 'u'),
                       "a byte");
        } else {
            well(MPI_File_read_at_all(file, at, data.data(), 90, MPI_BYTE, &status), "read_at_all");
            expect_bytes(data, at, 90, status);
        }
    }
    MPI_Type_free(&every_second);

    // An error of one rank is one of all, also where the others have read their data.
    doing = "an error of one rank";
    std::vector<unsigned char> data(100, 'u');
    const int code = MPI_File_read_at_all(file, 100 * me, data.data(), me == ranks - 1 ? -1 : 100, MPI_BYTE,
                                          MPI_STATUS_IGNORE);
    expect(code != MPI_SUCCESS, "a negative count: no error");
    std::fill(data.begin(), data.end(), static_cast<unsigned char>('u'));
    MPI_Status status;
    well(MPI_File_read_at_all(file, 100 * me, data.data(), 90, MPI_BYTE, &status), "the next call");
    expect_bytes(data, 100 * me, 90, status);
    MPI_File_close(&file);
}

namespace {

enum class How {
    write_at,
    write,
    write_shared,
    other_file,
    large_count,
    split,
    plain_all,
    shorter,
    iwrite_at
};
constexpr How kHows[] = {How::write_at, How::write, How::write_shared, How::other_file, How::large_count,
                         How::split, How::plain_all, How::shorter,
                         // The last: twinrun does not see its end.
                         How::iwrite_at};

struct Files {
    MPI_File ours = MPI_FILE_NULL;
    MPI_File other = MPI_FILE_NULL;  // the same file, without twinrun
    MPI_File alone = MPI_FILE_NULL;  // the same, of this rank alone, without twinrun
};

// By one rank alone.
void change(const Files& files, How how, const std::vector<int>& data) {
    const int count = static_cast<int>(data.size());
    MPI_Request request = MPI_REQUEST_NULL;
    switch (how) {
        case How::write_at:
            well(MPI_File_write_at(files.ours, 0, data.data(), count, MPI_INT, MPI_STATUS_IGNORE),
                 "write_at");
            break;
        case How::write:
            well(MPI_File_seek(files.ours, 0, MPI_SEEK_SET), "seek");
            well(MPI_File_write(files.ours, data.data(), count, MPI_INT, MPI_STATUS_IGNORE), "write");
            break;
        case How::write_shared:
            well(MPI_File_write_shared(files.alone, data.data(), count, MPI_INT, MPI_STATUS_IGNORE),
                 "write_shared");
            break;
        case How::other_file:
            well(MPI_File_write_at(files.other, 0, data.data(), count, MPI_INT, MPI_STATUS_IGNORE),
                 "write_at");
            break;
        case How::large_count:
#if MPI_VERSION >= 4
            well(MPI_File_write_at_c(files.ours, 0, data.data(), count, MPI_INT, MPI_STATUS_IGNORE),
                 "write_at_c");
#else
            well(MPI_File_write_at(files.ours, 0, data.data(), count, MPI_INT, MPI_STATUS_IGNORE),
                 "write_at");
#endif
            break;
        case How::split:
            well(MPI_File_write_at_all_begin(files.alone, 0, data.data(), count, MPI_INT),
                 "write_at_all_begin");
            well(MPI_File_write_at_all_end(files.alone, data.data(), MPI_STATUS_IGNORE), "write_at_all_end");
            break;
        case How::plain_all:
            well(MPI_File_write_at_all(files.alone, 0, data.data(), count, MPI_INT, MPI_STATUS_IGNORE),
                 "write_at_all");
            break;
        case How::shorter:
            well(MPI_File_set_size(files.alone, 0), "set_size");
            well(MPI_File_write_at(files.alone, 0, data.data(), count, MPI_INT, MPI_STATUS_IGNORE),
                 "write_at");
            break;
        case How::iwrite_at:
            well(MPI_File_iwrite_at(files.ours, 0, data.data(), count, MPI_INT, &request), "iwrite_at");
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            break;
    }
}

}  // namespace

void changes_before_a_read() {
    constexpr int kItems = 64;
    int value = 0;
    for (const How how : kHows) {
        for (int writer = 0; writer < ranks; ++writer) {
            remove_files();
            Files files;
            files.ours = open_file(folder + "/ours", kChange, false);
            std::vector<int> data(kItems, value);
            // The file is there, so that it has bytes to read before they are written.
            if (me == 0)
                well(MPI_File_write_at(files.ours, 0, data.data(), kItems, MPI_INT, MPI_STATUS_IGNORE),
                     "write_at");
            files.other = open_file(folder + "/ours", kChange, true);
            MPI_Info info = MPI_INFO_NULL;
            MPI_Info_create(&info);
            MPI_Info_set(info, "twinrun_enable", "false");
            well(MPI_File_open(MPI_COMM_SELF, (folder + "/ours").c_str(), kChange, info, &files.alone),
                 "MPI_File_open");
            MPI_Info_free(&info);
            // The first read may meet the write before it, so that only later ones go ahead.
            for (int round = 0; round < 8; ++round) {
                doing = "changes of kind " + std::to_string(static_cast<int>(how)) + " by rank " +
                        std::to_string(writer) + ", round " + std::to_string(round);
                const bool changes = round % 4 == 3;
                if (changes) ++value;
                if (changes && me == writer) {
                    // Most often the others are in their read now.
                    for (int i = 0; i < 300; ++i)
                        ::sched_yield();
                    std::fill(data.begin(), data.end(), value);
                    if (how == How::write_shared) MPI_File_seek_shared(files.alone, 0, MPI_SEEK_SET);
                    change(files, how, data);
                }
                std::vector<int> found(kItems, -1);
                MPI_Status status;
                well(MPI_File_read_at_all(files.ours, 0, found.data(), kItems, MPI_INT, &status),
                     "read_at_all");
                int got = -1;
                MPI_Get_count(&status, MPI_INT, &got);
                expect(got == kItems, std::to_string(got) + " items");
                for (const int item : found)
                    expect(item == value,
                           "item " + std::to_string(item) + " instead of " + std::to_string(value));
            }
            MPI_File_close(&files.ours);
            MPI_File_close(&files.other);
            MPI_File_close(&files.alone);
        }
    }
}

void descriptors_of_closed_files() {
    doing = "descriptors of closed files";
    const auto open_now = [] {
        const auto all = std::filesystem::directory_iterator("/proc/self/fd");
        return std::distance(begin(all), end(all));
    };
    // MPI keeps some from its first file on.
    std::ptrdiff_t first = 0;
    for (int round = 0; round < 6; ++round) {
        remove_files();
        const int amode = kChange | (round % 2 == 1 ? MPI_MODE_DELETE_ON_CLOSE : 0);
        MPI_File file = open_file(folder + "/ours", amode, false);
        const int item = me;
        well(MPI_File_write_at_all(file, 4 * me, &item, 1, MPI_INT, MPI_STATUS_IGNORE), "write_at_all");
        well(MPI_File_close(&file), "MPI_File_close");
        if (round == 1) first = open_now();
        if (round > 1) {
            expect(open_now() == first,
                   std::to_string(open_now()) + " descriptors instead of " + std::to_string(first));
        }
    }
}

}  // namespace program
