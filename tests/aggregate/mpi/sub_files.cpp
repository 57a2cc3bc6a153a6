// Scenario: sub-files of several writes.
#include <mpi.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "declarations.hpp"
#include "faults.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

namespace {

// A write or read by the first `count` ranks, each its own file (one file of one rank), and what comes of it on each.
struct Few {
    std::string path;
    bool update = false;
    bool no_index = false;

    void write(int count, std::uint64_t salt, int wanted = TWR_OK,
               const std::vector<std::string>& words = {}) const {
        run(count, salt, true, wanted, words);
    }
    void read(int count, std::uint64_t salt, int wanted = TWR_OK,
              const std::vector<std::string>& words = {}) const {
        run(count, salt, false, wanted, words);
    }

   private:
    void run(int count, std::uint64_t salt, bool writes, int wanted,
             const std::vector<std::string>& words) const {
        doing = std::string(writes ? "write" : "read") + " by " + std::to_string(count) + ", salt " +
                std::to_string(salt);
        MPI_Comm few = MPI_COMM_NULL;
        MPI_Comm_split(MPI_COMM_WORLD, me < count ? 0 : MPI_UNDEFINED, me, &few);
        if (few != MPI_COMM_NULL) {
            twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
            options.files = "rank";
            options.update = update ? 1 : 0;
            options.no_index = no_index ? 1 : 0;
            twr_aggregate* aggregate = nullptr;
            well(twr_aggregate_create(&aggregate, few, &options), "create");
            const twr_aggregate_variable all = {1, 1000, 0, 0, 0};
            well(twr_aggregate_declare(aggregate, &all, 1), "declare");
            std::vector<std::uint8_t> bytes(1000);
            for (std::uint64_t i = 0; i < bytes.size(); ++i)
                bytes[i] = byte_of(me, 0, i, 0, salt);
            std::vector<std::uint8_t> back(1000, 0xEE);
            const void* const from[] = {bytes.data()};
            void* const to[] = {back.data()};
            const int status = writes ? twr_aggregate_write(aggregate, path.c_str(), from)
                                      : twr_aggregate_read(aggregate, path.c_str(), to);
            if (wanted == TWR_OK) {
                well(status, "the call");
                if (!writes) same_bytes(back, bytes, "what was read");
            } else {
                fails_on(0, status, wanted, words);
            }
            twr_aggregate_free(aggregate);
            MPI_Comm_free(&few);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
};

}  // namespace

// Sub-files of several writes, by more and fewer ranks: a reader gets those that belong together, or an error; what twinrun cannot know for
// its own stays as it is.
void sub_files(const std::string& folder) {
    expect(ranks >= 3, "3 ranks");
    Few files{folder + "/data"};
    const std::string index = files.path + ".twr-index";
    const auto sub = [&](int number) { return files.path + ".0000" + std::to_string(number); };
    const std::vector<std::uint8_t> own(1000, 0x55);
    const auto by_one = [](const std::function<void()>& what) {
        if (me == 0) what();
        MPI_Barrier(MPI_COMM_WORLD);
    };
    // Another number of readers or of updaters than of writers.
    files.write(3, 1);
    files.read(3, 1);
    files.read(2, 1, TWR_ERROR_MISMATCH,
               {"written as 3 files", "2 files would be read", index, "files = one"});
    files.read(1, 1);  // the first bytes of all files, one behind the other
    files.update = true;
    files.write(2, 2, TWR_ERROR_MISMATCH, {"written as 3 files", "2 files would be updated"});
    files.write(1, 2, TWR_ERROR_MISMATCH, {"one file would be updated"});
    files.read(3, 1);
    files.write(3, 3);
    files.read(3, 3);
    files.update = false;
    // Fewer: the old last one goes, and others of such names stay.
    by_one([&] { put_contents(sub(3), own); });
    files.write(2, 4);
    by_one([&] { expect(!there(sub(2)), "the third file is still there"); });
    files.read(2, 4);
    files.read(3, 1, TWR_ERROR_MISMATCH, {"written as 2 files"});
    by_one([&] { same_bytes(contents(sub(3)), own, "a file of somebody's"); });
    // Not where it is not what was written any more: as many bytes, or a link to somebody's.
    files.write(3, 5);
    by_one([&] { put_contents(sub(2), own); });
    files.write(2, 6);
    by_one([&] { same_bytes(contents(sub(2)), own, "a file that somebody wrote to"); });
    files.write(3, 5);
    by_one([&] {
        put_contents(folder + "/precious", own);
        expect(
            ::unlink(sub(2).c_str()) == 0 && ::symlink((folder + "/precious").c_str(), sub(2).c_str()) == 0,
            "link");
    });
    files.write(2, 6);
    files.read(2, 6);
    by_one([&] {
        struct stat about {};
        expect(::lstat(sub(2).c_str(), &about) == 0 && S_ISLNK(about.st_mode),
               "a link of somebody's is gone");
        same_bytes(contents(folder + "/precious"), own, "what it leads to");
        ::unlink(sub(2).c_str());
    });
    // One file, and several again.
    files.write(3, 7);
    files.write(1, 8);
    by_one([&] {
        expect(!there(index) && !there(sub(0)) && !there(sub(1)) && !there(sub(2)), "sub-files of the past");
    });
    files.read(1, 8);
    files.read(3, 7, TWR_ERROR_NOT_FOUND, {index});
    files.write(2, 9);
    files.read(2, 9);
    files.read(1, 9, TWR_ERROR_MISMATCH, {"is there, and so are sub-files", index, "offsets = whole"});
    by_one([&] { expect(::unlink(files.path.c_str()) == 0, "unlink"); });
    files.read(1, 9);
    by_one([&] { expect(::truncate(sub(1).c_str(), 999) == 0, "truncate"); });
    files.read(1, 9, TWR_ERROR_DAMAGED, {sub(1), "999 bytes", "1000"});
    files.write(2, 9);
    // Sub-files that were exchanged: their lengths are right, and their bytes would come from the wrong places.
    const auto exchange = [&] {
        by_one([&] {
            const std::string between = folder + "/between";
            expect(::rename(sub(0).c_str(), between.c_str()) == 0 &&
                       ::rename(sub(1).c_str(), sub(0).c_str()) == 0 &&
                       ::rename(between.c_str(), sub(1).c_str()) == 0,
                   "exchange");
        });
    };
    exchange();
    const std::vector<std::string> exchanged{sub(0) + ": is the file that was written as " + sub(1),
                                             "its own name"};
    files.read(1, 9, TWR_ERROR_DAMAGED, exchanged);  // the bytes of both, one behind the other
    files.read(2, 9, TWR_ERROR_DAMAGED, exchanged);
    files.update = true;
    files.write(2, 9, TWR_ERROR_DAMAGED, exchanged);
    files.update = false;
    exchange();
    files.read(1, 9);
    files.read(2, 9);
    // A copy of the set has inodes and times of its own, and is read.
    by_one([&] {
        for (int number = 0; number < 2; ++number) {
            const std::vector<std::uint8_t> bytes = contents(sub(number));
            ::unlink(sub(number).c_str());
            put_contents(sub(number), bytes);
        }
    });
    files.read(1, 9);
    files.read(2, 9);
    // An index that is not one any more, and no file beside it that could be meant.
    files.write(2, 9);
    by_one([&] {
        std::vector<std::uint8_t> text = contents(index);
        text[0] ^= 1U;
        put_contents(index, text);
    });
    files.read(1, 9, TWR_ERROR_NOT_FOUND, {files.path + ": is not there", index, "altered"});
    by_one([&] { ::unlink(index.c_str()); });
    // A write that does not come to its end: the files may be of two writes, and nobody reads them.
    // The first rename sets the earlier index aside: where that fails, the earlier files stay whole.
    files.write(2, 10);
    if (me == 0) faults::fail("rename", 0, EIO);
    files.write(2, 11, TWR_ERROR_IO, {"Input/output error", index});
    faults::fail("", 0, 0);
    files.read(2, 10);
    for (int after = 1; after < 3; ++after) {
        files.write(2, 10);
        if (me == 0) faults::fail("rename", after, EIO);
        files.write(2, 11, TWR_ERROR_IO, {"Input/output error", "/data"});
        faults::fail("", 0, 0);
        files.read(2, 11, TWR_ERROR_NOT_FOUND, {index});
    }
    files.write(2, 12);
    files.read(2, 12);
    // Something of another's comes to the index' place while files are written.
    const auto comes = [&] {
        ::unlink(index.c_str());
        put_contents(index, own);
    };
    const auto stays = [&] {
        faults::act("", nullptr);
        by_one([&] {
            same_bytes(contents(index), own, "another's file");
            ::unlink(index.c_str());
        });
    };
    if (me == 0) faults::act("write", comes);
    files.write(2, 13, TWR_ERROR_INVALID_ARGUMENT, {index, "is left alone"});
    stays();
    files.write(2, 12);
    if (me == 0) faults::act("write", comes);
    files.write(1, 14);
    stays();
    files.read(1, 14);
    // Something of another's in the index' place.
    const auto not_ours = [&] {
        files.write(2, 13, TWR_ERROR_INVALID_ARGUMENT, {index});
        files.read(2, 13, TWR_ERROR_INVALID_ARGUMENT, {index});
        files.write(1, 14);
        files.read(1, 14);
    };
    for (const char* const text : {"", "a note", "{}", "[1, 2]", "{\"format\": \"twinrun\"}"}) {
        const std::vector<std::uint8_t> bytes(text, text + std::strlen(text));
        by_one([&] { put_contents(index, bytes); });
        not_ours();
        by_one([&] { same_bytes(contents(index), bytes, "another's file"); });
    }
    by_one([&] {
        expect(::unlink(index.c_str()) == 0 && ::symlink((folder + "/precious").c_str(), index.c_str()) == 0,
               "link");
    });
    not_ours();
    by_one([&] {
        same_bytes(contents(folder + "/precious"), own, "what it leads to");
        expect(::unlink(index.c_str()) == 0 && ::mkdir(index.c_str(), 0777) == 0, "folder");
    });
    not_ours();
    by_one([&] { expect(::rmdir(index.c_str()) == 0, "the folder is gone"); });
    const auto refused = [&](const char* text, int wanted) {
        by_one([&] { put_contents(index, std::vector<std::uint8_t>(text, text + std::strlen(text))); });
        files.write(2, 15, wanted, {index});
        files.read(2, 15, wanted, {index});
    };
    refused("{\"format\": \"twinrun sub-files\", \"version\": 4, \"files\": []}", TWR_ERROR_UNSUPPORTED);
    // Places that are not those of these files.
    for (const char* const places :
         {"", ", \"whole\": 1", ", \"whole\": {\"bytes\": 9, \"places\": []}",
          ", \"whole\": {\"bytes\": 9, \"places\": [[[0, 4, 1, 4]]]}",
          ", \"whole\": {\"bytes\": 9, \"places\": [[[0, 5, 1, 4]]]}",
          ", \"whole\": {\"bytes\": 4, \"places\": [[[0, 5, 1, 5]]]}",
          ", \"whole\": {\"bytes\": 9, \"places\": [[[18446744073709551615, 5, 1, 5]]]}",
          ", \"whole\": {\"bytes\": 9, \"places\": [[[0, 5, 18446744073709551615, 5]]]}",
          ", \"whole\": {\"bytes\": 9, \"places\": [[[0, 0, 1, 5]]]}"}) {
        const std::string text =
            std::string("{\"format\": \"twinrun sub-files\", \"version\": 2, \"files\": [[5, 2, 3]]") +
            places + "}";
        refused(text.c_str(), TWR_ERROR_DAMAGED);
    }
    refused("{\"format\": \"twinrun sub-files\", \"version\": 1, \"files\": [[1, 2]]}", TWR_ERROR_DAMAGED);
    // One that says more than its version has, or has no checksum where it should have one.
    for (const char* const text :
         {"\"version\": 1, \"files\": [[5, 2, 3]], \"whole\": {\"bytes\": 5, \"places\": [[[0, 5, 1, 5]]]}",
          "\"version\": 1, \"files\": [[5, 2, 3]], \"checksum\": \"0123456789abcdef\"",
          "\"version\": 3, \"files\": [[5, 2, 3]]"}) {
        refused((std::string("{\"format\": \"twinrun sub-files\", ") + text + "}").c_str(),
                TWR_ERROR_DAMAGED);
    }
    by_one([&] { ::unlink(index.c_str()); });
    // A changed digit.
    files.write(2, 15);
    by_one([&] {
        std::vector<std::uint8_t> text = contents(index);
        const std::string as_text(text.begin(), text.end());
        const std::size_t at = as_text.find("[1000,");
        expect(at != std::string::npos, "the length of a file in the index");
        text[at + 6] = text[at + 6] == '1' ? '2' : '1';
        put_contents(index, text);
    });
    files.read(2, 15, TWR_ERROR_DAMAGED, {index, "altered"});
    files.write(2, 15, TWR_ERROR_DAMAGED, {index, "remove it"});
    by_one([&] { ::unlink(index.c_str()); });
    // Places that two files have, and a whole that no file reaches the end of.
    files.write(2, 15);
    by_one([&] { ::unlink(files.path.c_str()); });
    for (const char* const whole :
         {"\"bytes\": 1500, \"places\": [[[0, 1000, 1, 1000]], [[500, 1000, 1, 1000]]]",
          "\"bytes\": 2000, \"places\": [[[0, 1, 1000, 2]], [[2, 500, 1, 500], [1500, 500, 1, 500]]]",
          "\"bytes\": 1000, \"places\": [[[0, 500, 1, 500], [0, 500, 1, 500]], [[0, 1000, 1, 1000]]]",
          "\"bytes\": 2001, \"places\": [[[0, 1000, 1, 1000]], [[1000, 1000, 1, 1000]]]"}) {
        const std::string text = std::string(
                                     "{\"format\": \"twinrun sub-files\", \"version\": 2, \"files\": "
                                     "[[1000, 2, 3], [1000, 4, 5]], \"whole\": {") +
                                 whole + "}}";
        by_one([&] { put_contents(index, std::vector<std::uint8_t>(text.begin(), text.end())); });
        files.read(1, 15, TWR_ERROR_DAMAGED, {index, "altered"});
    }
    by_one([&] { ::unlink(index.c_str()); });
    // A file with a second name is not removed.
    files.write(3, 15);
    by_one([&] { expect(::link(sub(2).c_str(), (folder + "/second").c_str()) == 0, "link"); });
    files.write(2, 16);
    by_one([&] {
        expect(there(sub(2)), "a file with a second name is gone");
        ::unlink(sub(2).c_str());
    });
    by_one([&] { ::unlink(index.c_str()); });
    // Programs that keep account themselves.
    files.no_index = true;
    files.write(3, 16);
    by_one([&] { expect(!there(index), "an index that nobody asked for"); });
    files.read(3, 16);
    // They write over files that have an index: it goes, and with it what only it names.
    files.no_index = false;
    files.write(3, 17);
    files.no_index = true;
    files.write(2, 18);
    by_one(
        [&] { expect(!there(index) && !there(sub(2)), "the index of an earlier write, or its third file"); });
    files.read(2, 18);
    files.no_index = false;
    files.read(2, 18, TWR_ERROR_NOT_FOUND, {index});
    files.write(3, 19);
    files.no_index = true;
    files.update = true;
    files.write(2, 20, TWR_ERROR_MISMATCH, {"written as 3 files", "2 files would be updated"});
    files.write(3, 20);
    by_one([&] { expect(!there(index), "the index of files that were updated without one"); });
    files.read(3, 20);
    files.update = false;
    files.no_index = false;
    files.write(3, 21);
    files.no_index = true;
    files.write(1, 22);
    by_one([&] { expect(!there(index) && !there(sub(0)), "sub-files below a new single file"); });
    files.read(1, 22);
    // The old files have no index from before the first one is replaced.
    files.no_index = false;
    files.write(2, 23);
    files.no_index = true;
    // Behind the rename that sets the index aside.
    if (me == 0) faults::fail("rename", 1, EIO);
    files.write(2, 24, TWR_ERROR_IO, {"Input/output error", "/data"});
    faults::fail("", 0, 0);
    by_one([&] { expect(!there(index), "an index of files of two writes"); });
    // What is not an index of ours stays, and so do the files.
    files.write(2, 25);
    by_one([&] { put_contents(index, own); });
    files.write(2, 26, TWR_ERROR_INVALID_ARGUMENT, {index, "left alone"});
    by_one([&] { same_bytes(contents(index), own, "another's file"); });
    files.read(2, 25);
    by_one([&] { ::unlink(index.c_str()); });
}

}  // namespace aggregate_ranks
