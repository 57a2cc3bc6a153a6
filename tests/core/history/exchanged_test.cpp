// Files and records that somebody put in the place of others, with their times kept: no reader
// takes them for what the journal names.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "history/check_record.hpp"
#include "history/compact.hpp"
#include "history/journal_line.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::capture;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::RecordBytes;
using testing::Truth;
using testing::unsynced_file_system;
using testing::wrong_with;

constexpr std::int64_t kLast = 4;

Truth exchanged_truth(std::uint32_t seed) {
    std::mt19937_64 random(seed);
    Truth truth;
    testing::TestImage image{{"a", testing::random_bytes(random, 4'000), 0}};
    for (std::int64_t step = 0; step <= kLast; ++step) {
        image[0].bytes[static_cast<std::size_t>(step) * 700] ^= std::byte{1};
        truth[step].push_back(image);
    }
    return truth;
}

std::string difference_of(const std::string& record, std::int64_t step) {
    return record + "/" + step_folder(step, 0) + "/rank-00000.twr";
}

// Puts a file in the place of another, which is as old as the other was.
void exchange_file(const std::string& from, const std::string& to) {
    const auto time = fs::last_write_time(to);
    fs::copy_file(from, to, fs::copy_options::overwrite_existing);
    fs::last_write_time(to, time);
}

// Makes the lines of a file what an earlier twinrun wrote.
void without_keys(const std::string& file, const std::set<std::string>& keys) {
    const std::function<void(Json&)> clean = [&](Json& j) {
        for (const std::string& key : keys) {
            if (j.is_object()) j.erase(key);
        }
        for (Json& part : j) {
            if (part.is_structured()) clean(part);
        }
    };
    const auto bytes = read_whole_file(file, 1 << 20).value();
    std::istringstream lines(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    std::string text;
    for (std::string line; std::getline(lines, line);) {
        Json object = Json::parse(open_line(line).value());
        clean(object);
        text += seal_line(object.dump()) + "\n";
    }
    testing::write_file(file, std::as_bytes(std::span(text)));
}

class ExchangedFiles : public ::testing::Test {
   protected:
    // A record of the run of this seed.
    std::string record(const std::string& name, std::uint32_t seed, const std::string& against = "") {
        const Truth truth = exchanged_truth(seed);
        capture(folder_ / (name + "-run"), truth);
        PackOptions how = options(RecordMethod::runs, 256, PayloadCodec::stored, false);
        how.against = against;
        pack(folder_ / (name + "-run"), folder_ / name, how);
        return folder_ / name;
    }
    static void expect_found(const std::string& path, const std::string& file) {
        const auto store = RecordStore::open(path, 0);
        ASSERT_TRUE(store) << store.error().message;
        EXPECT_EQ((*store)->changed_file(), file);
        EXPECT_EQ(wrong_with(**store, kLast, {{"a", RecordBytes(4'000), 0}}),
                  file +
                      ": is not the difference that the journal names: another file was put in its place: "
                      "restore it from a copy");
        const auto problems = check_record(path, 0, 1, kRecordMemory);
        ASSERT_TRUE(problems) << problems.error().message;
        ASSERT_FALSE(problems->empty());
        EXPECT_NE(problems->front().what.find(file), std::string::npos) << problems->front().what;
    }
    QuickFolder folder_;
};

TEST_F(ExchangedFiles, ADifferenceOfAnotherRunOrStepIsNoticed) {
    const std::string good = record("good", 1);
    const std::string other = record("other", 2);
    EXPECT_EQ(RecordStore::open(good, 0).value()->changed_file(), std::nullopt);
    const std::string file = difference_of(good, kLast);
    const std::string kept = folder_ / "kept";
    fs::copy_file(file, kept);
    for (const std::string& wrong : {difference_of(other, kLast), difference_of(good, kLast - 1)}) {
        exchange_file(wrong, file);
        expect_found(good, file);
        exchange_file(kept, file);
        EXPECT_EQ(RecordStore::open(good, 0).value()->changed_file(), std::nullopt);
    }
    fs::resize_file(file, 100);
    fs::last_write_time(file, fs::last_write_time(kept) - std::chrono::hours(1));
    EXPECT_EQ(RecordStore::open(good, 0).value()->changed_file(), file);
    fs::remove(file);
    fs::create_directory(file);
    EXPECT_EQ(RecordStore::open(good, 0).value()->changed_file(), file);
}

TEST_F(ExchangedFiles, WhatACompactionWroteIsNamedToo) {
    const auto compacted = [&](const std::string& name, std::uint32_t seed) {
        const std::string path = record(name, seed);
        CompactOptions how;
        how.keep_last = 2;
        const auto done = compact_record(unsynced_file_system(), path, how);
        EXPECT_TRUE(done) << done.error().message;
        return path;
    };
    const std::string good = compacted("good", 1);
    const std::string other = compacted("other", 2);
    EXPECT_EQ(RecordStore::open(good, 0).value()->changed_file(), std::nullopt);
    const Journal journal = read_rank_journal(good, 0, 1).value();
    std::set<std::string> files;
    for (const auto& [ordinal, place] : journal.differences) {
        EXPECT_TRUE(place.checksum) << place.file;
        files.insert(place.file);
    }
    EXPECT_GE(files.size(), 2U);
    for (const std::string& file : files) {
        const std::string here = good + "/" + file;
        const std::string kept = folder_ / "kept";
        fs::copy_file(here, kept, fs::copy_options::overwrite_existing);
        exchange_file(other + "/" + file, here);
        expect_found(good, here);
        exchange_file(kept, here);
    }
    // A second compaction reads by the journal, and so does one with an exchanged file.
    exchange_file(difference_of(record("third", 3), kLast), difference_of(good, kLast));
    CompactOptions how;
    how.keep_last = 1;
    const auto refused = compact_record(unsynced_file_system(), good, how);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::damaged) << refused.error().message;
}

TEST_F(ExchangedFiles, AJournalWithoutTheKeyIsReadAsBefore) {
    const std::string good = record("good", 1);
    const std::string other = record("other", 2);
    without_keys(good + "/manifest.jsonl", {"difference_xxh3"});
    const Journal journal = read_rank_journal(good, 0, 1).value();
    for (const auto& [ordinal, place] : journal.differences)
        EXPECT_FALSE(place.checksum);
    const auto store = RecordStore::open(good, 0).value();
    EXPECT_TRUE(store->map(kLast));
    EXPECT_EQ(store->changed_file(), std::nullopt);
    exchange_file(difference_of(other, kLast), difference_of(good, kLast));
    EXPECT_EQ(RecordStore::open(good, 0).value()->changed_file(), std::nullopt);
    fs::last_write_time(difference_of(good, kLast), fs::file_time_type::clock::now() + std::chrono::hours(1));
    EXPECT_EQ(RecordStore::open(good, 0).value()->changed_file(), difference_of(good, kLast));
}

TEST_F(ExchangedFiles, AnotherRecordInThePlaceOfAParent) {
    const std::string first = record("first", 1);
    const std::string second = record("second", 1, first);
    const std::string third = record("third", 1, second);
    const std::string other = record("other", 2);
    fs::rename(first, folder_ / "kept");
    fs::rename(other, first);
    for (const auto& [path, child] : {std::pair{second, second}, std::pair{third, second}}) {
        const auto store = RecordStore::open(path, 0);
        ASSERT_FALSE(store);
        EXPECT_EQ(store.error().code, ErrorCode::damaged);
        EXPECT_EQ(store.error().message, first + ": is not the record that " + child +
                                             " was captured against: put that one back in its place");
        EXPECT_FALSE(check_record(path, 0, 1, kRecordMemory));
    }
    // It is not continued against another one, and can be replaced.
    std::uint32_t ranks = 0;
    RecordSettings settings = read_history_settings(second, ranks).value().record.value();
    const HistoryId before = settings.against_id;
    EXPECT_EQ(before.size(), 32U);
    const auto refused = settle_against(unsynced_file_system(), settings, second, 1, first, false);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("is not the record that"), std::string::npos);
    ASSERT_TRUE(settle_against(unsynced_file_system(), settings, second, 1, first, false, true));
    EXPECT_EQ(settings.against_id, read_history_id(first).value());
    fs::rename(first, other);
    fs::rename(folder_ / "kept", first);
    EXPECT_TRUE(RecordStore::open(third, 0));
    // A record from before there was the key knows no ID.
    without_keys(second + "/manifest.jsonl", {"against_id"});
    EXPECT_TRUE(RecordStore::open(third, 0));
    fs::rename(first, folder_ / "kept");
    fs::rename(other, first);
    EXPECT_TRUE(RecordStore::open(second, 0));
    settings = read_history_settings(second, ranks).value().record.value();
    ASSERT_TRUE(settle_against(unsynced_file_system(), settings, second, 1, first, false));
    EXPECT_EQ(settings.against_id, "");
}

}  // namespace
}  // namespace twinrun
