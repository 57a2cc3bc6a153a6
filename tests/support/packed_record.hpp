// Histories of random content, packed into records: made, and held against what was captured.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "history/check_record.hpp"
#include "history/history.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"
#include "support/record.hpp"
#include "support/session.hpp"
#include "support/test_folder.hpp"
#include "support/threads_comm.hpp"

namespace twinrun::testing {

class QuickFolder : public FreshFolder {
   public:
    QuickFolder() : FreshFolder(quick_folder()) {}
};

inline int rounds(int normal) {
    const char* text = std::getenv("TWINRUN_TEST_ROUNDS");
    return text == nullptr ? normal : std::max(1, std::min(normal, std::atoi(text)));
}

// What each rank had at each step.
using Truth = std::map<std::int64_t, std::vector<TestImage>>;

inline std::vector<CapturedField> fields_of(const TestImage& image) {
    std::vector<CapturedField> fields;
    for (const auto& segment : image) {
        CapturedField field;
        field.name = segment.name;
        field.dtype = DType::u8;
        field.shape = {segment.bytes.size()};
        field.data = segment.bytes.data();
        fields.push_back(field);
    }
    return fields;
}

inline Truth random_truth(std::uint64_t seed, int steps, int ranks, std::uint32_t chunk = 64) {
    Truth truth;
    for (int rank = 0; rank < ranks; ++rank) {
        RandomHistory history(seed * 10 + static_cast<std::uint64_t>(rank), chunk);
        for (int step = 0; step < steps; ++step) {
            truth[step * 10].push_back(history.next());
            TestImage& image = truth[step * 10].back();
            if (image.empty()) image.push_back({"only", RecordBytes(10, std::byte{1}), 0});
        }
    }
    return truth;
}

inline void capture(const std::string& path, const Truth& truth, SessionSettings settings = {}) {
    const auto ranks = static_cast<int>(truth.begin()->second.size());
    settings.background = false;
    settings.threads = 1;
    ThreadsComm::run(ranks, [&](Comm& comm) {
        auto run = Session::open(unsynced_file_system(), comm, path, settings);
        ASSERT_TRUE(run) << run.error().message;
        for (const auto& [step, images] : truth) {
            const auto report =
                (*run)->capture_fields(step, fields_of(images[static_cast<std::size_t>(comm.rank())]));
            ASSERT_TRUE(report) << report.error().message;
            ASSERT_TRUE(report->lost.empty()) << report->lost[0].error.message;
        }
        ASSERT_TRUE((*run)->close());
    });
}

inline PackOptions options(RecordMethod method = RecordMethod::runs, std::uint32_t chunk = 64,
                           PayloadCodec codec = PayloadCodec::zstd, bool xored = true) {
    PackOptions all;
    all.settings.method = method;
    all.settings.chunk_bytes = chunk;
    all.settings.codec = codec_available(codec) ? codec : PayloadCodec::stored;
    all.settings.xored = xored && all.settings.codec != PayloadCodec::stored && method != RecordMethod::full;
    return all;
}

// What is wrong with one step; empty: all its bytes are right, as a whole and in parts.
inline std::string wrong_with(RecordStore& store, std::int64_t step, const TestImage& image) {
    const auto map = store.map(step);
    if (!map) return map.error().message;
    for (const auto& segment : image) {
        if (segment.bytes.empty()) continue;
        const RecordSegment* found = map->find(segment.name);
        if (found == nullptr || found->bytes != segment.bytes.size())
            return "another segment " + segment.name;
        const auto number = static_cast<std::size_t>(found - map->directory.segments.data());
        std::vector<std::byte> bytes(segment.bytes.size());
        if (const auto read = store.read_segment(*map, number, bytes); !read) return read.error().message;
        if (bytes != segment.bytes) return "OTHER BYTES in " + segment.name;
        const std::size_t begin = static_cast<std::size_t>(step * 31 + 7) % bytes.size();
        const std::size_t count = (bytes.size() - begin) / 2 + 1;
        std::vector<std::byte> part(count);
        if (const auto read = store.read(*map, number, begin, part); !read) return read.error().message;
        if (!std::equal(part.begin(), part.end(), segment.bytes.begin() + static_cast<std::ptrdiff_t>(begin)))
            return "OTHER BYTES in a part of " + segment.name;
    }
    return "";
}

// All of `steps` are right, no other step is there, and the record's own check finds nothing.
inline void expect_record(const std::string& path, const Truth& truth, const std::set<std::int64_t>& steps) {
    const auto history = History::open(path);
    ASSERT_TRUE(history) << history.error().message;
    std::set<std::int64_t> there;
    for (const HistoryStep& step : history->steps)
        there.insert(step.step);
    EXPECT_EQ(there, steps);
    for (std::uint32_t rank = 0; rank < history->ranks; ++rank) {
        auto store = RecordStore::open(path, rank);
        ASSERT_TRUE(store) << store.error().message;
        for (const std::int64_t step : steps) {
            EXPECT_EQ(wrong_with(**store, step, truth.at(step)[rank]), "") << path << ", step " << step;
        }
        const auto problems = check_record(path, rank, 1);
        ASSERT_TRUE(problems) << problems.error().message;
        for (const RecordProblem& problem : *problems)
            ADD_FAILURE() << problem.what;
    }
}
inline void expect_record(const std::string& path, const Truth& truth) {
    std::set<std::int64_t> steps;
    for (const auto& [step, images] : truth)
        steps.insert(step);
    expect_record(path, truth, steps);
}

// Two histories have the same steps, and these the same files.
inline void expect_same_files(const std::string& a, const std::string& b) {
    const auto first = History::open(a);
    const auto second = History::open(b);
    ASSERT_TRUE(first) << first.error().message;
    ASSERT_TRUE(second) << second.error().message;
    ASSERT_EQ(first->steps.size(), second->steps.size());
    ASSERT_EQ(first->ranks, second->ranks);
    for (std::size_t s = 0; s < first->steps.size(); ++s) {
        const HistoryStep& x = first->steps[s];
        const HistoryStep& y = second->steps[s];
        ASSERT_EQ(x.step, y.step);
        for (std::uint32_t rank = 0; rank < first->ranks; ++rank) {
            const auto name = [&](const std::string& path, const HistoryStep& step, const std::string& file) {
                return (std::filesystem::path(path) / step.folder / file).string();
            };
            EXPECT_EQ(x.ranks[rank].header_checksum, y.ranks[rank].header_checksum);
            EXPECT_EQ(x.ranks[rank].data_bytes, y.ranks[rank].data_bytes);
            EXPECT_TRUE(read_file(name(a, x, x.ranks[rank].data)) ==
                        read_file(name(b, y, y.ranks[rank].data)))
                << x.step;
            EXPECT_TRUE(read_file(name(a, x, x.ranks[rank].metadata)) ==
                        read_file(name(b, y, y.ranks[rank].metadata)))
                << x.step;
        }
    }
}

inline std::vector<std::int64_t> steps_of(const Truth& truth) {
    std::vector<std::int64_t> steps;
    for (const auto& [step, images] : truth)
        steps.push_back(step);
    return steps;
}

inline void pack(const std::string& source, const std::string& target, const PackOptions& how) {
    const auto packed = pack_history(unsynced_file_system(), source, target, how, {});
    ASSERT_TRUE(packed) << packed.error().message;
}

// Files in the folders of steps that no journal names.
inline std::vector<std::string> unnamed_files(const std::string& path) {
    const auto history = History::open(path);
    EXPECT_TRUE(history);
    std::set<std::string> named;
    for (std::uint32_t rank = 0; rank < history->ranks; ++rank) {
        const auto journal = read_rank_journal(path, rank, history->ranks);
        EXPECT_TRUE(journal);
        for (const auto& [step, files] : journal->steps) {
            named.insert(files.folder + "/" + files.files.metadata);
            named.insert(files.folder + "/" + files.files.data);
        }
        for (const auto& [ordinal, place] : journal->differences)
            named.insert(place.file);
    }
    std::vector<std::string> others;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
        const std::string name = std::filesystem::relative(entry.path(), path).string();
        if (entry.path().filename() == marker_name(history->id)) continue;
        if (entry.is_regular_file() && name.find('/') != std::string::npos && !named.contains(name))
            others.push_back(name);
    }
    return others;
}

inline std::uint64_t bytes_in(const std::string& path) {
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
        if (entry.path().extension() == ".twr") bytes += entry.file_size();
    }
    return bytes;
}

// Steps that cannot be given back, found by giving back each of them.
inline std::set<std::int64_t> lost_steps(const std::string& record, const Truth& truth,
                                         const std::set<std::int64_t>& steps) {
    std::set<std::int64_t> lost;
    auto store = RecordStore::open(record, 0);
    EXPECT_TRUE(store);
    for (const std::int64_t step : steps) {
        const std::string wrong = wrong_with(**store, step, truth.at(step)[0]);
        EXPECT_EQ(wrong.find("OTHER"), std::string::npos) << wrong;
        if (!wrong.empty()) lost.insert(step);
    }
    return lost;
}

}  // namespace twinrun::testing
