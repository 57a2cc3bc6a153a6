// Steps read back while the run that writes them goes on.
#include "history/restore.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "history/flush.hpp"
#include "history/reference.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::unsynced_file_system;

class LiveSteps : public ::testing::Test {
   protected:
    LiveSteps() {
        std::string name = (testing::quick_folder() / "twinrun-live-XXXXXX").string();
        folder_ = ::mkdtemp(name.data());
        run_ = (folder_ / "run").string();
        local_ = (folder_ / "local").string();
    }
    ~LiveSteps() override { fs::remove_all(folder_); }

    // Captures steps, all of whose items are `value`.
    void capture(const std::vector<std::int64_t>& steps, double value, Existing existing,
                 bool local = false) {
        SessionSettings settings;
        settings.background = false;
        settings.threads = 1;
        settings.existing = existing;
        settings.replace_steps = existing == Existing::append;
        if (local) {
            settings.local = local_;
            settings.flusher = Flusher::none;
        }
        auto run = Session::open(unsynced_file_system(), comm_, run_, settings);
        ASSERT_TRUE(run) << run.error().message;
        std::vector<double> values(1000, value);
        for (const std::int64_t step : steps)
            ASSERT_TRUE((*run)->capture_fields(step, {testing::captured("x", values)}));
        ASSERT_TRUE((*run)->close());
    }
    static void drop(HistoryWriter& writer, std::int64_t step) { ASSERT_TRUE(writer.drop({&step, 1})); }
    void drop(std::int64_t step) {
        std::uint32_t ranks = 0;
        const auto settings = read_history_settings(run_, ranks);
        auto writer = HistoryWriter::open(unsynced_file_system(), run_, *settings, 0, 1, Existing::append);
        ASSERT_TRUE(writer) << writer.error().message;
        drop(**writer, step);
    }
    [[nodiscard]] std::vector<StoredPart> places(std::int64_t step) const {
        const auto journal = read_rank_journal(run_, 0, 1);
        EXPECT_TRUE(journal);
        const auto entry = journal->steps.find(step);
        if (entry == journal->steps.end()) return {};
        StoredPart part{run_, {}};
        part.journal.steps.put(step, entry->second);
        return {part};
    }

    SelfComm comm_;
    fs::path folder_;
    std::string run_;
    std::string local_;
};

TEST_F(LiveSteps, AreReadWhereTheyAreThen) {
    capture({1, 2}, 1.0, Existing::refuse);
    std::vector<double> values(1000, -1.0);
    const std::vector<CapturedField> fields{testing::captured("x", values)};
    const auto restore = [&](std::int64_t step, auto before_the_first_read) {
        int finds = 0;
        const auto find = [&] {
            auto parts = places(step);
            if (finds++ == 0) before_the_first_read();
            return parts;
        };
        return read_stored(find, step, [&](const auto& parts) { return restore_step(parts, step, fields); });
    };
    const auto again = restore(1, [&] { capture({1}, 2.0, Existing::append); });
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(values, std::vector<double>(1000, 2.0));
    const auto left = restore(2, [&] { drop(2); });
    ASSERT_FALSE(left);
    EXPECT_EQ(left.error().code, ErrorCode::not_found);
    EXPECT_NE(left.error().message.find("step 2 was removed while it was read"), std::string::npos)
        << left.error().message;
    // What the journals still name is missing.
    const auto missing =
        restore(1, [&] { fs::remove(fs::path(run_) / "step-0000000001.1/rank-00000.data"); });
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().message.find("was removed while"), std::string::npos)
        << missing.error().message;
    const auto never = restore(7, [] {});
    ASSERT_FALSE(never);
    EXPECT_NE(never.error().message.find("has not committed it"), std::string::npos);
}

TEST_F(LiveSteps, AreBroughtOnAsTheyAreThen) {
    capture({1, 2, 3, 4}, 1.0, Existing::refuse, true);
    const std::string part = local_path(local_, 0);
    const auto before = LocalHistory::read(part);
    ASSERT_TRUE(before);
    capture({2}, 2.0, Existing::append, true);
    {
        auto writer = HistoryWriter::open_local(unsynced_file_system(), part, before->settings, 0, 1,
                                                before->history, false);
        ASSERT_TRUE(writer) << writer.error().message;
        drop(**writer, 1);
    }
    fs::remove(fs::path(part) / "step-0000000004/rank-00000.data");  // which the part's journal still names
    auto to = HistoryWriter::open(unsynced_file_system(), run_, before->settings, 0, 1, Existing::append);
    ASSERT_TRUE(to);
    std::vector<std::int64_t> lost;
    const auto done = flush_steps(part, before->journal, **to,
                                  [&](std::int64_t step, const Error&) { lost.push_back(step); });
    ASSERT_TRUE(done);
    EXPECT_EQ(done->steps, 2U);
    ASSERT_EQ((*to)->journal().steps.size(), 2U);
    EXPECT_EQ((*to)->journal().steps.at(2).folder, step_folder(2, 1));
    std::vector<double> values(1000);
    ASSERT_TRUE(restore_step(places(2), 2, {testing::captured("x", values)}));
    EXPECT_EQ(values, std::vector<double>(1000, 2.0));
    EXPECT_EQ(lost, std::vector<std::int64_t>{4});
}

TEST_F(LiveSteps, OfAReferenceAreComparedAsTheyAreThen) {
    capture({1, 2}, 1.0, Existing::refuse);
    const auto reference = Reference::open(run_, 0, 1);
    ASSERT_TRUE(reference);
    std::shared_ptr<MetadataFile> metadata = *open_stored(places(1), 1);
    const std::vector<FieldMetadata> fields = metadata->directory().fields;
    capture({1}, 2.0, Existing::append);
    drop(2);
    const auto moved = (*reference)->check(1, fields)->result();
    EXPECT_FALSE(moved) << moved->reason;
    const auto left = (*reference)->check(2, fields)->result();
    ASSERT_TRUE(left);
    EXPECT_EQ(left->reason, "the step was removed from the reference meanwhile");
}

}  // namespace
}  // namespace twinrun
