// Sessions whose states are known at every step, so that any of them can be checked without having kept it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capture/session.hpp"
#include "history/restore.hpp"
#include "support/session.hpp"
#include "support/test_folder.hpp"

namespace twinrun::testing {

// What element i of a field is at a step: any state can be checked without having kept it.
inline double value_at(std::int64_t step, int rank, std::size_t field, std::size_t i) {
    return static_cast<double>(step) + 1e3 * rank + 1e-3 * static_cast<double>(field) +
           1e-9 * static_cast<double>(i % 977);
}

struct State : DoubleFields {
    using DoubleFields::DoubleFields;
    void become(std::int64_t step, int rank) {
        fill([&](std::size_t f, std::size_t i) { return value_at(step, rank, f, i); });
    }
    [[nodiscard]] bool is(std::int64_t step, int rank) const {
        return hold([&](std::size_t f, std::size_t i) { return value_at(step, rank, f, i); });
    }
};

class SessionTest : public FolderTest {
   protected:
    void SetUp() override { run_ = (folder_ / "run").string(); }

    static SessionSettings settings() {
        SessionSettings s;
        s.history.tolerance.atol = 1e-6;
        s.memory_bytes = 16 << 20;
        s.threads = 2;
        return s;
    }
    Result<std::unique_ptr<Session>> open(SessionSettings s) {
        return Session::open(posix_file_system(), comm_, run_, std::move(s));
    }
    // Steps that are committed; each reads back bit for bit.
    static std::vector<std::int64_t> check(const std::string& path, const std::vector<std::size_t>& sizes,
                                           bool with_data = true) {
        std::vector<std::int64_t> steps;
        auto history = History::open(path);
        EXPECT_TRUE(history) << history.error().message;
        if (!history) return steps;
        for (const HistoryStep& step : history->steps) {
            steps.push_back(step.step);
            for (const RankFiles& r : step.ranks) {
                const int rank = static_cast<int>(r.rank);
                State state(sizes);
                Journal journal;
                journal.steps.put(step.step, {step.folder, r});
                if (with_data && !r.data.empty()) {
                    const auto restored = restore_step({{path, journal}}, step.step, state.list());
                    EXPECT_TRUE(restored) << restored.error().message;
                    EXPECT_TRUE(state.is(step.step, rank)) << "step " << step.step;
                }
                // Its digests are those of the elements.
                state.become(step.step, rank);
                auto metadata =
                    MetadataFile::open((std::filesystem::path(path) / step.folder / r.metadata).string());
                EXPECT_TRUE(metadata) << metadata.error().message;
                if (!metadata) continue;
                const auto list = state.list();
                for (std::size_t f = 0; f < list.size(); ++f) {
                    const FieldMetadata& field = (*metadata)->directory().fields[f];
                    MemorySource source(DType::f64, field.items(), list[f].data, 8, false);
                    BuiltField built;
                    EXPECT_TRUE(build_in_memory(field, source, {}, built));
                    BuiltField stored;
                    stored.tree.resize(built.tree.size());
                    stored.fine.resize(built.fine.size());
                    stored.residues.resize(built.residues.size());
                    EXPECT_TRUE((*metadata)->read(f, Section::tree, 0,
                                                  std::as_writable_bytes(std::span(stored.tree))));
                    EXPECT_TRUE((*metadata)->read(f, Section::fine, 0,
                                                  std::as_writable_bytes(std::span(stored.fine))));
                    EXPECT_TRUE((*metadata)->read(f, Section::residues, 0, stored.residues));
                    EXPECT_EQ(stored.tree, built.tree);
                    EXPECT_EQ(stored.fine, built.fine);
                    EXPECT_TRUE(stored.residues == built.residues);
                }
            }
        }
        return steps;
    }

    SelfComm comm_;
    std::string run_;
};

inline std::vector<std::string> folders_in(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
        if (entry.is_directory()) names.push_back(entry.path().filename().string());
    }
    return names;
}

inline const std::vector<std::size_t> kSmall{1, 100, 0, 5000};
inline const std::vector<std::size_t> kLarge{700'001, 3, 1'000'000,
                                             100};  // 13.6 MB: pieces of several slices

}  // namespace twinrun::testing
