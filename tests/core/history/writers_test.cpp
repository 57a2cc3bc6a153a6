// Who may write a history: one process at a time, whatever the others ask for.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "history/history.hpp"
#include "history/journal.hpp"
#include "history/journal_line.hpp"
#include "history/others.hpp"
#include "history/writer.hpp"
#include "metadata/metadata.hpp"
#include "platform/anchored.hpp"
#include "support/forwarding_file_system.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class WritersTest : public testing::FolderTest {
   protected:
    void SetUp() override { run_ = (folder_ / "run").string(); }

    using Opened = Result<std::unique_ptr<HistoryWriter>>;
    [[nodiscard]] Opened open(std::uint32_t rank, std::uint32_t ranks, Existing existing) const {
        return HistoryWriter::open(posix_file_system(), run_, HistorySettings{}, rank, ranks, existing);
    }
    static Result<> commit(HistoryWriter& writer, std::int64_t step) {
        RankStep entry;
        entry.folder = step_folder(step, 0);
        entry.files.rank = writer.rank();
        entry.files.metadata = rank_name(writer.rank()) + ".twm";
        fs::create_directories(fs::path(writer.path()) / entry.folder);
        std::ofstream(fs::path(writer.path()) / entry.folder / entry.files.metadata) << step;
        const HistoryWriter::Commit line{step, entry};
        return writer.commit({&line, 1});
    }
    // A step as captures leave it: metadata, and data of this many bytes that it says.
    [[nodiscard]] fs::path write_step(HistoryWriter& writer, std::int64_t step, std::uint64_t bytes) const {
        const std::string folder = step_folder(step, 0);
        const fs::path place = fs::path(writer.path()) / folder;
        EXPECT_TRUE(writer.make_folder(folder));
        RankStep entry;
        entry.folder = folder;
        entry.files.rank = writer.rank();
        entry.files.data = rank_name(writer.rank()) + ".data";
        entry.files.metadata = rank_name(writer.rank()) + ".twm";
        entry.files.data_bytes = bytes;
        std::ofstream(place / entry.files.data) << std::string(bytes, 'd');
        Directory directory;
        directory.step = step;
        directory.rank = writer.rank();
        directory.data_files.push_back({entry.files.data, {bytes, 0}});
        auto metadata = MetadataWriter::create(posix_file_system(), (place / entry.files.metadata).string(),
                                               std::move(directory));
        EXPECT_TRUE(metadata && (*metadata)->finish());
        const HistoryWriter::Commit line{step, entry};
        EXPECT_TRUE(writer.commit({&line, 1}));
        return place;
    }
    static std::string content(const fs::path& file) {
        std::ifstream stream(file, std::ios::binary);
        return {std::istreambuf_iterator<char>(stream), {}};
    }
    [[nodiscard]] std::size_t steps() const {
        const auto history = History::open(run_);
        EXPECT_TRUE(history) << history.error().message;
        for (const HistoryStep& step : history->steps) {
            for (const RankFiles& files : step.ranks)
                EXPECT_TRUE(fs::exists(fs::path(run_) / step.folder / files.metadata));
        }
        return history->steps.size();
    }

    std::string run_;
};

// Each descriptor of a file has a lock of its own: threads stand for processes.
TEST_F(WritersTest, OneOfManyThatBeginAtOnceDoes) {
    constexpr int kWriters = 6;
    for (int round = 0; round < 12; ++round) {
        fs::remove_all(run_);
        const Existing existing = round % 3 == 0 ? Existing::refuse : Existing::append;
        std::barrier start(kWriters);
        std::atomic<int> committed = 0;
        std::atomic<int> refused = 0;
        std::vector<std::thread> writers;
        for (int i = 0; i < kWriters; ++i) {
            writers.emplace_back([&, i] {
                start.arrive_and_wait();
                auto writer = open(0, 1, existing);
                if (!writer) {
                    EXPECT_NE(writer.error().message.find("holds a history already"), std::string::npos)
                        << writer.error().message;
                    ++refused;
                    return;
                }
                const auto done = commit(**writer, i);
                EXPECT_TRUE(done) << done.error().message;
                ++committed;
            });
        }
        for (auto& writer : writers)
            writer.join();
        EXPECT_EQ(committed + refused, kWriters);
        EXPECT_EQ(committed, existing == Existing::refuse ? 1 : kWriters);
        EXPECT_EQ(steps(), static_cast<std::size_t>(committed));
    }
}

TEST_F(WritersTest, RunsOfOtherNumbersOfRanksAreToldApart) {
    const auto busy = [](const Opened& opened) {
        return !opened && opened.error().message.find("another process is writing") != std::string::npos;
    };
    {
        auto alone = open(0, 1, Existing::refuse);
        ASSERT_TRUE(alone) << alone.error().message;
        ASSERT_TRUE(commit(**alone, 1));
        std::thread other([&] { EXPECT_TRUE(busy(open(0, 2, Existing::replace))); });
        EXPECT_TRUE(busy(open(0, 1, Existing::replace)));
        other.join();
        ASSERT_TRUE(commit(**alone, 2));
    }
    EXPECT_EQ(steps(), 2U);
    {
        auto first = open(0, 2, Existing::replace);
        ASSERT_TRUE(first) << first.error().message;
        auto second = open(1, 2, Existing::replace);
        ASSERT_TRUE(second) << second.error().message;
        ASSERT_TRUE(commit(**first, 3));
        ASSERT_TRUE(commit(**second, 3));
        std::vector<std::thread> others;
        others.emplace_back([&] { EXPECT_TRUE(busy(open(0, 1, Existing::append))); });
        others.emplace_back([&] { EXPECT_TRUE(busy(open(0, 1, Existing::replace))); });
        others.emplace_back([&] { EXPECT_TRUE(busy(open(1, 2, Existing::append))); });
        for (auto& other : others)
            other.join();
        // Rank 0 has ended, and rank 1 goes on: nobody takes its steps away.
        first->reset();
        EXPECT_TRUE(busy(open(0, 1, Existing::replace)));
        ASSERT_TRUE(commit(**second, 4));
    }
    EXPECT_EQ(steps(), 1U);
    auto alone = open(0, 1, Existing::replace);
    ASSERT_TRUE(alone) << alone.error().message;
    EXPECT_EQ(steps(), 0U);
}

// Two processes take themselves for the same rank, before it has a journal.
TEST_F(WritersTest, ARankIsThereOnce) {
    auto first = open(0, 3, Existing::refuse);
    ASSERT_TRUE(first);
    std::barrier start(2);
    std::atomic<int> good = 0;
    std::vector<Opened> opened;
    opened.reserve(2);
    opened.emplace_back(Error{ErrorCode::internal, ""});
    opened.emplace_back(Error{ErrorCode::internal, ""});
    std::vector<std::thread> writers;
    for (std::size_t i = 0; i < 2; ++i) {
        writers.emplace_back([&, i] {
            start.arrive_and_wait();
            opened[i] = open(2, 3, Existing::refuse);
            if (opened[i]) ++good;
        });
    }
    for (auto& writer : writers)
        writer.join();
    EXPECT_EQ(good, 1);
    for (auto& one : opened) {
        if (one) {
            EXPECT_TRUE(commit(**one, 1));
        }
    }
    const auto journal = read_rank_journal(run_, 2, 3);
    ASSERT_TRUE(journal) << journal.error().message;
    EXPECT_EQ(journal->steps.size(), 1U);
}

// A name that captures give proves nothing: what a step has of others stays when it leaves, and the folder with it.
TEST_F(WritersTest, WhatOnlyHasOneOfOurNamesStays) {
    auto writer = open(0, 1, Existing::refuse);
    ASSERT_TRUE(writer);
    const std::vector<std::string> names = {
        "rank-00000.1.data",   "rank-00000.twr",        "rank-00000.3.twr", "rank-00000.difference-7.twr",
        "rank-00000.data.tmp", "rank-00000.twm.tmp",    "group.data",       "group.data.00001",
        "group.notes",         "group.data.twr-partial"};
    for (const std::string& name : names) {
        const fs::path place = write_step(**writer, 1, 4096);
        std::ofstream(place / name) << "my notes\n";
        const std::int64_t one = 1;
        ASSERT_TRUE((*writer)->drop({&one, 1}));
        EXPECT_EQ(content(place / name), "my notes\n") << name;
        EXPECT_FALSE(fs::exists(place / "rank-00000.data")) << name;
        EXPECT_FALSE(fs::exists(place / "rank-00000.twm")) << name;
        EXPECT_TRUE(is_marked(run_, place.filename().string(), (*writer)->id())) << name;
        fs::remove(place / name);
    }
    // In place of a file of ours.
    for (const std::string name : {"rank-00000.data", "rank-00000.twm"}) {
        const fs::path place = write_step(**writer, 1, 8192);
        std::ofstream(place / name) << (name.ends_with(".twm") ? "my notes\n" : std::string(4096, 'm'));
        const std::string mine = content(place / name);
        const std::int64_t one = 1;
        ASSERT_TRUE((*writer)->drop({&one, 1}));
        EXPECT_EQ(content(place / name), mine) << name;
        EXPECT_EQ(std::distance(fs::directory_iterator(place), {}), 2) << name;  // it, and the marker
        fs::remove(place / name);
    }
}

// Nor do sizes, where ranks share no files, or are not there.
TEST_F(WritersTest, WhatHasANameAndASizeOfOursStays) {
    auto writer = open(0, 1, Existing::refuse);
    ASSERT_TRUE(writer);
    for (const std::string name :
         {"group.data", "group.data.00000", "group.data.twr-partial.0123456789abcdef"}) {
        const fs::path place = write_step(**writer, 1, 4096);
        std::ofstream(place / name) << std::string(4096, 'm');
        const std::int64_t one = 1;
        ASSERT_TRUE((*writer)->drop({&one, 1}));
        EXPECT_EQ(content(place / name), std::string(4096, 'm')) << name;
        EXPECT_FALSE(fs::exists(place / "rank-00000.data"));
        fs::remove(place / name);
    }
    const fs::path place = write_step(**writer, 2, 4096);
    std::ofstream(place / "rank-00001.data") << std::string(4096, 'm');
    writer->reset();
    ASSERT_TRUE(open(0, 1, Existing::replace));
    EXPECT_TRUE(fs::exists(place / "rank-00001.data"));
    EXPECT_FALSE(fs::exists(place / "rank-00000.data"));
}

// A manifest that was restored from an older copy does not name the newest step, nor one whose folder has another name or is a copy.
TEST_F(WritersTest, AStepThatNoLineNamesStays) {
    const fs::path run(run_);
    std::string older;
    {
        auto writer = open(0, 1, Existing::refuse);
        ASSERT_TRUE(writer);
        static_cast<void>(write_step(**writer, 1, 4096));
        ASSERT_TRUE((*writer)->make_folder("step-0000000002"));
        older = content(manifest_path(run_));  // copied while the run writes step 2
        static_cast<void>(write_step(**writer, 2, 4096));
        static_cast<void>(write_step(**writer, 3, 4096));
    }
    std::ofstream(manifest_path(run_)) << older;
    fs::rename(run / "step-0000000001", run / "step-0000000030");
    fs::copy(run / "step-0000000002", run / "step-0000000099", fs::copy_options::recursive);
    const std::vector<std::string> stay = {"step-0000000002", "step-0000000003", "step-0000000030",
                                           "step-0000000099"};
    const auto all_there = [&] {
        for (const std::string& folder : stay) {
            EXPECT_TRUE(fs::exists(run / folder / "rank-00000.data")) << folder;
            EXPECT_TRUE(fs::exists(run / folder / "rank-00000.twm")) << folder;
        }
    };
    {
        auto writer = open(0, 1, Existing::append);
        ASSERT_TRUE(writer) << writer.error().message;
        all_there();
        // Who captures the step again takes another folder.
        EXPECT_EQ((*writer)->folder_for(2), "step-0000000002.1");
        const std::int64_t one = 1;
        ASSERT_TRUE((*writer)->drop({&one, 1}));
    }
    all_there();
    ASSERT_TRUE(open(0, 1, Existing::replace));
    all_there();
    ASSERT_TRUE(open(0, 1, Existing::append));
    all_there();
}

// The history is not replaced if one of its folders would have to stay; and what was marked for that does not go later.
TEST_F(WritersTest, WhatCannotBeMarkedIsNotReplaced) {
    const fs::path run(run_);
    HistoryId id;
    {
        auto writer = open(0, 1, Existing::refuse);
        ASSERT_TRUE(writer);
        id = (*writer)->id();
        for (const std::int64_t step : {1, 2, 3})
            static_cast<void>(write_step(**writer, step, 4096));
    }
    class NoMark final : public testing::ForwardingFileSystem {
       public:
        Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t bytes) override {
            if (path.ends_with(".left") && path.find("step-0000000003") != std::string::npos)
                return Error{ErrorCode::io, path + ": permission denied"};
            return ForwardingFileSystem::create(path, bytes);
        }
    } refuses;
    const auto replaced = HistoryWriter::open(refuses, run_, HistorySettings{}, 0, 1, Existing::replace);
    ASSERT_FALSE(replaced);
    EXPECT_NE(replaced.error().message.find("cannot be replaced"), std::string::npos)
        << replaced.error().message;
    EXPECT_EQ(History::open(run_)->steps.size(), 3U);
    for (const std::int64_t step : {1, 2, 3})
        EXPECT_FALSE(fs::exists(run / step_folder(step, 0) / left_name(id))) << step;
    // A run that was killed after it had marked all, and a manifest that names the first step only.
    const std::string whole = content(manifest_path(run_));
    const std::size_t end = whole.find('\n', whole.find('\n') + 1) + 1;
    for (const std::int64_t step : {1, 2, 3})
        std::ofstream(run / step_folder(step, 0) / left_name(id)).close();
    std::ofstream(manifest_path(run_)) << whole.substr(0, end);
    ASSERT_TRUE(open(0, 1, Existing::append));
    for (const std::int64_t step : {1, 2, 3}) {
        EXPECT_TRUE(fs::exists(run / step_folder(step, 0) / "rank-00000.data")) << step;
        EXPECT_FALSE(fs::exists(run / step_folder(step, 0) / left_name(id))) << step;
    }
    // Somebody else's file of that kind of name lets nothing go, once the history is replaced.
    ASSERT_TRUE(open(0, 1, Existing::replace));
    std::ofstream(run / step_folder(3, 0) / left_name(id)) << "mine";
    ASSERT_TRUE(open(0, 1, Existing::append));
    EXPECT_FALSE(fs::exists(run / step_folder(1, 0)));
    for (const std::int64_t step : {2, 3})
        EXPECT_TRUE(fs::exists(run / step_folder(step, 0) / "rank-00000.data")) << step;
    // What a killed run of the replaced history had begun goes, and nothing beside it.
    std::ofstream(run / step_folder(2, 0) / begun_name(0)).close();
    std::ofstream(run / step_folder(2, 0) / "rank-00001.twm") << "mine";
    ASSERT_TRUE(open(0, 1, Existing::append));
    EXPECT_FALSE(fs::exists(run / step_folder(2, 0) / "rank-00000.data"));
    EXPECT_TRUE(fs::exists(run / step_folder(2, 0) / "rank-00001.twm"));
    EXPECT_TRUE(fs::exists(run / step_folder(3, 0) / "rank-00000.data"));
}

// Before its n-th operation the history is moved away, and another one gets its place.
class SwappingFileSystem final : public testing::ForwardingFileSystem {
   public:
    SwappingFileSystem(std::string run, std::string moved, std::string other)
        : run_(std::move(run)), moved_(std::move(moved)), other_(std::move(other)) {}
    void swap_before(int operation) { left_ = operation; }
    [[nodiscard]] bool swapped() const { return left_ == 0; }

    Result<std::unique_ptr<FileSystem>> anchored(const std::string& root) override {
        auto system = std::make_unique<AnchoredFileSystem>(*this, root);
        TWR_CHECK(system->anchor());
        return std::unique_ptr<FileSystem>(std::move(system));
    }
    Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t bytes) override {
        count();
        return ForwardingFileSystem::create(path, bytes);
    }
    Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t& size) override {
        count();
        return ForwardingFileSystem::open_append(path, size);
    }
    Result<> rename(const std::string& from, const std::string& to) override {
        count();
        return ForwardingFileSystem::rename(from, to);
    }
    Result<> replace(const std::string& from, const std::string& to) override {
        count();
        return ForwardingFileSystem::replace(from, to);
    }
    Result<bool> make_marked_folder(const std::string& path, const std::string& marker) override {
        count();
        return ForwardingFileSystem::make_marked_folder(path, marker);
    }
    Result<> remove(const std::string& path) override {
        count();
        return ForwardingFileSystem::remove(path);
    }
    Result<> remove_empty_folder(const std::string& path) override {
        count();
        return ForwardingFileSystem::remove_empty_folder(path);
    }
    Result<> sync_folder(const std::string& path) override {
        count();
        return ForwardingFileSystem::sync_folder(path);
    }

   private:
    void count() {
        if (left_ <= 0 || --left_ != 0) return;
        fs::rename(run_, moved_);
        fs::rename(other_, run_);
    }
    std::string run_, moved_, other_;
    int left_ = -1;
};

TEST_F(WritersTest, AHistoryThatGetsThePlaceIsNotTouched) {
    const auto tree = [](const fs::path& root) {
        std::map<std::string, std::string> files;
        for (const auto& entry : fs::recursive_directory_iterator(root))
            files[fs::relative(entry.path(), root).string()] = entry.is_regular_file() ? content(entry) : "";
        return files;
    };
    const std::string other = (folder_ / "other").string();
    const std::string moved = (folder_ / "moved").string();
    int operation = 1;
    for (bool swapped = true; swapped; ++operation) {
        for (const std::string& path : {run_, other, moved})
            fs::remove_all(path);
        {
            auto theirs =
                HistoryWriter::open(posix_file_system(), other, HistorySettings{}, 0, 1, Existing::refuse);
            ASSERT_TRUE(theirs);
            for (const std::int64_t step : {1, 2, 3})
                static_cast<void>(write_step(**theirs, step, 4096));
        }
        const auto before = tree(other);
        SwappingFileSystem system(run_, moved, other);
        {
            auto writer = HistoryWriter::open(system, run_, HistorySettings{}, 0, 1, Existing::refuse);
            ASSERT_TRUE(writer) << writer.error().message;
            for (const std::int64_t step : {1, 2})
                static_cast<void>(write_step(**writer, step, 4096));
            const std::string begun = step_folder(3, 0);
            ASSERT_TRUE((*writer)->make_folder(begun));
            std::ofstream(fs::path(run_) / begun / "rank-00000.data") << std::string(4096, 'd');
            system.swap_before(operation);
            const std::int64_t dropped = 1;
            static_cast<void>((*writer)->drop({&dropped, 1}));
            static_cast<void>((*writer)->remove_files(begun));
            const std::int64_t without = 2;
            static_cast<void>((*writer)->drop_data({&without, 1}));
            static_cast<void>((*writer)->make_folder(step_folder(2, 1)));
            static_cast<void>((*writer)->system().create(
                (fs::path((*writer)->path()) / step_folder(2, 1) / "x").string(), 0));
        }
        swapped = system.swapped();
        EXPECT_EQ(tree(swapped ? run_ : other), before) << "operation " << operation;
    }
    EXPECT_GT(operation, 8);
}

TEST_F(WritersTest, WhatAKilledProcessMadeWithoutItsNameGoes) {
    const fs::path run(run_);
    ASSERT_TRUE(open(0, 1, Existing::refuse));
    fs::create_directory(run / ".twinrun-0123456789abcdef");
    fs::create_directory(run / ".twinrun-mine");
    fs::create_directories(run / ".twinrun-0123456789abcde0" / "mine");
    std::ofstream(run / "manifest.jsonl.0123456789abcdef.tmp") << "{";
    std::ofstream(run / "manifest.jsonl.tmp") << "mine";
    ASSERT_TRUE(open(0, 1, Existing::append));
    EXPECT_FALSE(fs::exists(run / ".twinrun-0123456789abcdef"));
    EXPECT_FALSE(fs::exists(run / "manifest.jsonl.0123456789abcdef.tmp"));
    for (const char* name : {".twinrun-mine", ".twinrun-0123456789abcde0/mine", "manifest.jsonl.tmp"})
        EXPECT_TRUE(fs::exists(run / name)) << name;
}

// A name proves nothing of a file either that somebody was writing.
TEST_F(WritersTest, WhatOnlyHasATemporaryNameOfOursStays) {
    const fs::path run(run_);
    const std::string end = ".0123456789abcdef.tmp";
    std::string manifest, journal, other;
    HistoryId id;
    {
        auto writer = open(0, 2, Existing::refuse);
        ASSERT_TRUE(writer);
        id = (*writer)->id();
        static_cast<void>(write_step(**writer, 1, 4096));
        manifest = content(manifest_path(run_));
        journal = content(journal_path(run_, 0, 2));
    }
    fs::rename(run, folder_ / "before");
    {
        auto writer = open(0, 2, Existing::refuse);
        ASSERT_TRUE(writer);
        other = content(journal_path(run_, 0, 2));
    }
    fs::remove_all(run);
    fs::rename(folder_ / "before", run);
    const auto opened_with = [&](const std::string& name, const std::string& text) {
        std::ofstream(run / name, std::ios::binary) << text;
        const auto writer = open(0, 2, Existing::append);
        EXPECT_TRUE(writer) << writer.error().message;
        const bool stays = fs::exists(run / name) && content(run / name) == text;
        EXPECT_EQ(stays, fs::exists(run / name));
        fs::remove(run / name);
        return stays;
    };
    const std::string line = journal.substr(0, journal.find('\n') + 1);
    for (const std::string& begun : {std::string(), manifest, manifest.substr(0, 1), manifest.substr(0, 40),
                                     manifest.substr(0, manifest.size() - 1)})
        EXPECT_FALSE(opened_with("manifest.jsonl" + end, begun)) << begun;
    for (const std::string& begun : {std::string(), journal, line, line.substr(0, 1), line.substr(0, 45),
                                     line.substr(0, line.size() - 1)})
        EXPECT_FALSE(opened_with("rank-00000.jsonl" + end, begun)) << begun;
    std::string changed = manifest;
    changed[20] ^= 1;
    for (const std::string& mine : {std::string("mine, and no line of a history\n"), std::string("{\"mine\""),
                                    std::string("\n"), changed, std::string(100, '\0'), journal})
        EXPECT_TRUE(opened_with("manifest.jsonl" + end, mine)) << mine;
    for (const std::string& mine : {std::string("mine\n"), other, other.substr(0, 45), manifest})
        EXPECT_TRUE(opened_with("rank-00000.jsonl" + end, mine)) << mine;
    for (const std::string& name : {"manifest.jsonl.mine" + end, "rank-00001.jsonl" + end})
        EXPECT_TRUE(opened_with(name, "")) << name;
    // In a step's folder: of a rank that is writing there.
    const std::string step = step_folder(1, 0) + "/";
    for (const std::string name : {"rank-00000.data", "rank-00000.twm", "rank-00000.twr"}) {
        EXPECT_TRUE(opened_with(step + name + end, "mine")) << name;
        std::ofstream(run / step / begun_name(0)).close();
        EXPECT_FALSE(opened_with(step + name + end, "half")) << name;
        EXPECT_FALSE(fs::exists(run / step / begun_name(0)));
    }
    const std::string left = step_folder(7, 0) + "/";  // without a line
    fs::create_directory(run / left);
    std::ofstream(run / left / marker_name(id)).close();
    EXPECT_TRUE(opened_with(left + "rank-00000.data" + end, "mine"));
    // A history that replaces it leaves it too.
    std::ofstream(run / step / ("rank-00000.data" + end)) << "mine";
    ASSERT_TRUE(open(0, 2, Existing::replace));
    EXPECT_EQ(content(run / step / ("rank-00000.data" + end)), "mine");
    EXPECT_FALSE(fs::exists(run / step / "rank-00000.data"));
}

// Killed again and again between a part's new manifest and its new journal.
TEST_F(WritersTest, APartWhoseOpeningsWereKilledIsOpened) {
    const auto open_part = [&](const HistoryId& of) {
        return HistoryWriter::open_local(posix_file_system(), run_, HistorySettings{}, 0, 2, "/to/run", false,
                                         of);
    };
    const HistoryId of(32, 'a');
    ASSERT_TRUE(open_part(of));
    const std::string journal = content(journal_path(run_, 0, 2));
    for (int kills = 0; kills < 4; ++kills) {
        const auto again = open_part(of);
        ASSERT_TRUE(again) << again.error().message;
        std::ofstream(journal_path(run_, 0, 2), std::ios::binary) << journal;
    }
    const auto last = open_part(of);
    ASSERT_TRUE(last) << last.error().message;
    ASSERT_TRUE(commit(**last, 1));
    EXPECT_EQ(LocalHistory::read(run_)->journal.steps.size(), 1U);
    EXPECT_EQ(entries_of_others(run_).value(), std::vector<std::string>());
}

// Else its steps are seen by nobody, and nobody misses them.
TEST_F(WritersTest, WhatIsOfAnotherHistoryIsTold) {
    const fs::path run(run_);
    const fs::path first = folder_ / "first";
    using Names = std::vector<std::string>;
    for (const std::uint32_t ranks : {1U, 2U}) {
        for (const bool again : {false, true}) {
            fs::remove_all(run);
            for (std::uint32_t rank = 0; rank < ranks; ++rank) {
                auto writer = open(rank, ranks, Existing::append);
                ASSERT_TRUE(writer) << writer.error().message;
                for (const std::int64_t step : {1, 2})
                    static_cast<void>(write_step(**writer, step, 4096));
            }
            if (!again) fs::rename(run, first);
        }
        EXPECT_EQ(entries_of_others(run_).value(), Names());
        fs::copy_file(manifest_path(first.string()), manifest_path(run_),
                      fs::copy_options::overwrite_existing);
        Names all = {step_folder(1, 0), step_folder(2, 0)};
        if (ranks == 2) all.insert(all.begin(), {"rank-00000.jsonl", "rank-00001.jsonl"});
        EXPECT_EQ(entries_of_others(run_).value(), all);
        // Where journals name the folders, one says as much as all.
        std::erase(all, step_folder(2, 0));
        EXPECT_EQ(entries_of_others(run_, {step_folder(1, 0), step_folder(2, 0)}).value(), all);
        fs::remove_all(first);
    }
    // Not what a history that is replaced leaves, nor a folder that is left for somebody else's files.
    fs::remove_all(run);
    fs::path other;
    for (const Existing existing : {Existing::refuse, Existing::replace}) {
        auto writer = open(0, 2, existing);
        ASSERT_TRUE(writer) << writer.error().message;
        if (existing == Existing::replace) break;
        other = write_step(**writer, 1, 4096);
        std::ofstream(other / "rank-00002.data") << std::string(4096, 'm');
    }
    EXPECT_TRUE(fs::exists(other / "rank-00002.data"));
    EXPECT_EQ(entries_of_others(run_).value(), Names());
    fs::create_directory(run / step_folder(3, 0));
    std::ofstream(run / step_folder(3, 0) / marker_name(HistoryId(32, 'b'))).close();
    std::ofstream(run / step_folder(3, 0) / "mine").close();
    EXPECT_EQ(entries_of_others(run_).value(), Names());
}

// Who asks for the settings alone is told the same, however long the line is, and wherever it is damaged.
TEST_F(WritersTest, TheHeadOfAManifestSaysWhatTheWholeSays) {
    ASSERT_TRUE(open(0, 1, Existing::refuse));
    const std::string text = content(manifest_path(run_));
    const std::string object = open_line(text.substr(0, text.find('\n'))).value();
    std::string ids;
    for (int i = 0; i < 150; ++i)
        ids += (i == 0 ? "\"" : ",\"") + HistoryId(32, 'a') + "\"";
    const std::string many = object.substr(0, object.size() - 1) + ",\"replaced\":[" + ids + "]}";
    for (const std::string& settings : {object, many}) {
        const std::string first = seal_line(settings) + "\n";
        const bool is_long = first.size() > 4096;
        EXPECT_EQ(is_long, settings == many);
        for (std::size_t at = first.size() % 41; at <= first.size(); at += 41) {
            std::string damaged = first;
            if (at < first.size()) damaged[at] = static_cast<char>(damaged[at] ^ 1);
            std::ofstream(manifest_path(run_), std::ios::binary | std::ios::trunc) << damaged;
            History whole, head;
            Journal ignored;
            const auto by_whole = read_manifest(run_, whole, ignored);
            const auto by_head = read_manifest_head(run_, head);
            ASSERT_EQ(by_whole.ok(), by_head.ok()) << at;
            EXPECT_EQ(by_whole.ok(), at == first.size()) << at;
            if (!by_whole) {
                EXPECT_EQ(by_whole.error().message, by_head.error().message);
            } else {
                EXPECT_EQ(head.path, whole.path);
                EXPECT_EQ(head.id, whole.id);
                EXPECT_EQ(head.has_id, whole.has_id);
                EXPECT_EQ(head.replaced, whole.replaced);
                EXPECT_EQ(head.ranks, whole.ranks);
            }
        }
        // What follows is not its business.
        std::ofstream(manifest_path(run_), std::ios::binary | std::ios::trunc) << first << "damaged\n";
        History head;
        EXPECT_EQ(read_manifest_head(run_, head).ok(), !is_long);
    }
}

// A run was killed: before the line that names a step, or after the one that lets it go.
TEST_F(WritersTest, WhatWasBegunAndIsNotNamedGoes) {
    const fs::path run(run_);
    {
        auto writer = open(0, 1, Existing::refuse);
        ASSERT_TRUE(writer);
        const fs::path ready = write_step(**writer, 1, 4096);
        EXPECT_FALSE(fs::exists(ready / begun_name(0)));
        fs::copy(ready, folder_ / "kept", fs::copy_options::recursive);
        const std::int64_t one = 1;
        ASSERT_TRUE((*writer)->make_folder("step-0000000002"));
        EXPECT_TRUE(fs::exists(run / "step-0000000002" / begun_name(0)));
        for (const char* name : {"rank-00000.data", "rank-00000.twm"})
            fs::copy_file(ready / name, run / "step-0000000002" / name);
        ASSERT_TRUE((*writer)->drop({&one, 1}));
        EXPECT_FALSE(fs::exists(ready));
        fs::copy(folder_ / "kept", ready, fs::copy_options::recursive);
        std::ofstream(ready / begun_name(0)).close();
        // Of another rank: not of this one's journal.
        ASSERT_TRUE((*writer)->make_folder("step-0000000003"));
        fs::copy_file(ready / "rank-00000.twm", run / "step-0000000003" / "rank-00001.twm");
    }
    ASSERT_TRUE(open(0, 1, Existing::append));
    EXPECT_FALSE(fs::exists(run / "step-0000000001"));
    EXPECT_FALSE(fs::exists(run / "step-0000000002"));
    EXPECT_TRUE(fs::exists(run / "step-0000000003" / "rank-00001.twm"));
    EXPECT_FALSE(fs::exists(run / "step-0000000003" / begun_name(0)));
}

// On a full disk, for instance: a step that stays is whole, so that no older manifest lets it go.
TEST_F(WritersTest, AStepThatCouldNotLeaveIsNotMarked) {
    class Full : public twinrun::testing::ForwardingFileSystem {
       public:
        bool full = false;
        Result<std::unique_ptr<OutputFile>> open_append(const std::string& path,
                                                        std::uint64_t& size) override {
            if (full) return Error{ErrorCode::io, path + ": no space left"};
            return ForwardingFileSystem::open_append(path, size);
        }
    } disk;
    const std::int64_t one = 1;
    const fs::path ready = fs::path(run_) / step_folder(1, 0);
    const std::string empty = [&] {
        auto writer = HistoryWriter::open(disk, run_, HistorySettings{}, 0, 1, Existing::refuse);
        EXPECT_TRUE(writer);
        std::string first = content(manifest_path(run_));
        static_cast<void>(write_step(**writer, 1, 4096));
        disk.full = true;
        EXPECT_FALSE((*writer)->drop({&one, 1}));
        EXPECT_FALSE(fs::exists(ready / begun_name(0)));
        // What was begun and is not named yet keeps its mark.
        EXPECT_TRUE((*writer)->make_folder(step_folder(1, 0)));
        EXPECT_FALSE((*writer)->drop({&one, 1}));
        EXPECT_TRUE(fs::exists(ready / begun_name(0)));
        fs::remove(ready / begun_name(0));
        return first;
    }();
    std::ofstream(manifest_path(run_)) << empty;
    ASSERT_TRUE(open(0, 1, Existing::append));
    EXPECT_TRUE(fs::exists(ready / "rank-00000.data"));
}

TEST_F(WritersTest, WhatCanBeProvenLeaves) {
    HistorySettings settings;
    settings.shared = true;
    auto writer = HistoryWriter::open(posix_file_system(), run_, settings, 0, 1, Existing::refuse);
    ASSERT_TRUE(writer);
    const fs::path place = write_step(**writer, 1, 4096);
    std::ofstream(place / "group.data") << std::string(8192, 'g');
    std::ofstream(place / "group.data.twr-partial.0123456789abcdef") << "part";
    std::ofstream(place / "rank-00000.data.0123456789abcdef.tmp") << "part";
    std::ofstream(place / "rank-00000.2.twr") << "TWRDIFF\nand more";
    const std::int64_t one = 1;
    ASSERT_TRUE((*writer)->drop({&one, 1}));
    EXPECT_FALSE(fs::exists(place));
}

// Another rank makes its first file between the marker's end and the folder's: whose folder it is can still be told.
TEST_F(WritersTest, AFolderThatStaysKeepsItsMarker) {
    class Interjecting final : public testing::ForwardingFileSystem {
       public:
        Result<> remove_empty_folder(const std::string& path) override {
            std::ofstream(fs::path(path) / "rank-00001.twm") << "another rank's";
            return ForwardingFileSystem::remove_empty_folder(path);
        }
    } system;
    auto writer = HistoryWriter::open(system, run_, HistorySettings{}, 0, 1, Existing::refuse);
    ASSERT_TRUE(writer);
    const fs::path place = write_step(**writer, 1, 4096);
    const std::int64_t one = 1;
    ASSERT_TRUE((*writer)->drop({&one, 1}));
    EXPECT_EQ(content(place / "rank-00001.twm"), "another rank's");
    EXPECT_TRUE(is_marked(run_, place.filename().string(), (*writer)->id()));
    EXPECT_FALSE(fs::exists(place / "rank-00000.data"));
}

// Its steps would be those of a rank that committed nothing.
TEST_F(WritersTest, AJournalThatIsNoFileIsDamage) {
    {
        auto first = open(0, 2, Existing::refuse);
        auto second = open(1, 2, Existing::refuse);
        ASSERT_TRUE(first && second && commit(**first, 1) && commit(**second, 1));
    }
    EXPECT_EQ(steps(), 1U);
    const fs::path journal = journal_path(run_, 1, 2);
    fs::remove(journal);
    for (int kind = 0; kind < 3; ++kind) {
        if (kind == 0) fs::create_directory(journal);
        if (kind == 1) fs::create_symlink("/dev/null", journal);
        if (kind == 2) {
            ASSERT_EQ(::mkfifo(journal.c_str(), 0600), 0);
        }
        const auto history = History::open(run_);
        ASSERT_FALSE(history) << kind;
        EXPECT_NE(history.error().message.find("rank-00001.jsonl: damaged: is not a regular file"),
                  std::string::npos)
            << history.error().message;
        fs::remove(journal);
    }
}

// A journal begins whole, in one rename: a part of its first line is damage, not a rank that committed nothing.
TEST_F(WritersTest, AJournalWithoutAWholeFirstLineIsDamage) {
    {
        auto first = open(0, 2, Existing::refuse);
        auto second = open(1, 2, Existing::refuse);
        ASSERT_TRUE(first && second && commit(**first, 1) && commit(**second, 1));
    }
    const std::string journal = journal_path(run_, 1, 2);
    const std::size_t end = content(journal).find('\n');
    for (const std::size_t size : {end, end / 2, std::size_t{1}}) {
        fs::resize_file(journal, size);
        const auto history = History::open(run_);
        ASSERT_FALSE(history) << size;
        EXPECT_NE(history.error().message.find("rank-00001.jsonl: damaged: line 1: it is not complete"),
                  std::string::npos)
            << history.error().message;
        const auto appended = open(1, 2, Existing::append);
        EXPECT_FALSE(appended);
    }
}

// Without its manifest a history cannot be read, but with a copy of it can: nothing is begun in its place.
TEST_F(WritersTest, WhatIsLeftOfAHistoryStopsARun) {
    for (const std::uint32_t ranks : {1U, 2U}) {
        SCOPED_TRACE(ranks);
        fs::remove_all(run_);
        {
            auto first = open(0, ranks, Existing::refuse);
            ASSERT_TRUE(first);
            static_cast<void>(write_step(**first, 1, 4096));
            if (ranks == 2) {
                auto second = open(1, ranks, Existing::refuse);
                ASSERT_TRUE(second);
                static_cast<void>(write_step(**second, 1, 4096));
            }
        }
        const std::string manifest = content(manifest_path(run_));
        fs::remove(manifest_path(run_));
        const auto refused = [&](const Opened& opened, const std::string& left) {
            ASSERT_FALSE(opened);
            EXPECT_EQ(opened.error().code, ErrorCode::damaged);
            EXPECT_NE(opened.error().message.find("manifest.jsonl: missing, and " + left), std::string::npos)
                << opened.error().message;
            EXPECT_FALSE(fs::exists(manifest_path(run_)));
        };
        for (const Existing existing : {Existing::refuse, Existing::append, Existing::replace}) {
            refused(open(0, ranks, existing), ranks == 1 ? "step-0000000001" : "rank-00000.jsonl");
            refused(open(0, 3 - ranks, existing), ranks == 1 ? "step-0000000001" : "rank-00000.jsonl");
        }
        if (ranks == 2) refused(open(1, ranks, Existing::append), "rank-00000.jsonl");
        std::ofstream(manifest_path(run_), std::ios::binary) << manifest;
        EXPECT_EQ(steps(), 1U);
    }
    // The same names without a proof are another program's.
    fs::remove_all(run_);
    fs::create_directories(fs::path(run_) / "step-0000000001");
    std::ofstream(fs::path(run_) / "step-0000000001" / ".twinrun-notes") << "mine";
    std::ofstream(fs::path(run_) / "rank-00000.jsonl") << "{\"mine\":1}\n";
    EXPECT_TRUE(open(0, 1, Existing::append));
}

// What a rank's journal does not name is removed as the leftovers of a crash: not where there is no journal.
TEST_F(WritersTest, AJournalThatIsGoneTakesNoFile) {
    fs::path place;
    for (const std::uint32_t rank : {0U, 1U}) {
        auto writer = open(rank, 2, Existing::append);
        ASSERT_TRUE(writer);
        place = write_step(**writer, 1, 4096);
    }
    for (const std::uint32_t rank : {0U, 1U}) {
        SCOPED_TRACE(rank);
        const std::string journal = journal_path(run_, rank, 2);
        const std::string before = content(journal);
        fs::remove(journal);
        const auto refused = open(rank, 2, Existing::append);
        ASSERT_FALSE(refused);
        EXPECT_NE(refused.error().message.find(rank_name(rank) + ".jsonl: missing, and step-0000000001/"),
                  std::string::npos)
            << refused.error().message;
        EXPECT_FALSE(fs::exists(journal));
        std::ofstream(journal, std::ios::binary) << before;
        EXPECT_EQ(steps(), 1U);
    }
    EXPECT_TRUE(fs::exists(place / "rank-00000.data") && fs::exists(place / "rank-00001.data"));
    // A rank that had no step yet begins its journal.
    for (const char* name : {"rank-00001.data", "rank-00001.twm"})
        fs::remove(place / name);
    fs::remove(journal_path(run_, 1, 2));
    EXPECT_TRUE(open(1, 2, Existing::append));
}

// What was dropped left a folder for the sake of a foreign file: no step is in it.
TEST_F(WritersTest, AMarkedFolderWithoutStepsStopsNobody) {
    fs::path place;
    {
        auto part =
            HistoryWriter::open_local(posix_file_system(), run_, HistorySettings{}, 0, 1, "/history", false);
        ASSERT_TRUE(part);
        place = write_step(**part, 1, 4096);
    }
    fs::remove(manifest_path(run_));
    std::ofstream(place / "notes") << "mine";
    const auto open_part = [&] {
        return HistoryWriter::open_local(posix_file_system(), run_, HistorySettings{}, 0, 1, "/history",
                                         false);
    };
    EXPECT_FALSE(open_part()) << "its files are there";
    for (const char* name : {"rank-00000.data", "rank-00000.twm"})
        fs::remove(place / name);
    const auto opened = open_part();
    EXPECT_TRUE(opened) << opened.error().message;
    EXPECT_TRUE(fs::exists(place / "notes"));
}

TEST_F(WritersTest, WhatIsLeftOfAPartStopsARun) {
    const auto open_part = [&](bool replace) {
        return HistoryWriter::open_local(posix_file_system(), run_, HistorySettings{}, 1, 2, "/history",
                                         replace);
    };
    {
        auto part = open_part(false);
        ASSERT_TRUE(part);
        static_cast<void>(write_step(**part, 1, 4096));
    }
    fs::remove(manifest_path(run_));
    for (const bool replace : {false, true}) {
        const auto opened = open_part(replace);
        ASSERT_FALSE(opened);
        EXPECT_NE(opened.error().message.find("manifest.jsonl: missing"), std::string::npos)
            << opened.error().message;
        EXPECT_FALSE(fs::exists(manifest_path(run_)));
    }
    fs::remove_all(run_);
    fs::path place;
    {
        auto part = open_part(false);
        ASSERT_TRUE(part);
        place = write_step(**part, 1, 4096);
    }
    fs::remove(journal_path(run_, 1, 2));
    EXPECT_FALSE(open_part(false));
    EXPECT_TRUE(fs::exists(place / "rank-00001.data"));
    EXPECT_TRUE(open_part(true)) << "it is replaced";
}

}  // namespace
}  // namespace twinrun
