// Packing while storage fails.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <set>

#include "history/history.hpp"
#include "history/pack.hpp"
#include "support/faulty_file_system.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::capture;
using testing::expect_record;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::options;
using testing::QuickFolder;
using testing::random_truth;
using testing::Truth;
using testing::unnamed_files;
using testing::unsynced_file_system;

// Any operation fails, or the machine goes down: committed steps read back, and packing again
// completes the record.
void any_fault_leaves_whole_steps(int ranks, int steps, const SessionSettings& settings) {
    QuickFolder folder;
    const Truth truth = random_truth(4321, steps, ranks);
    capture(folder / "run", truth, settings);
    const PackOptions how = options();
    std::size_t operations = 0;
    {
        FaultyFileSystem system(unsynced_file_system());
        ASSERT_TRUE(pack_history(system, folder / "run", folder / "record", how, {}));
        operations = system.operations();
    }
    for (const int kind : {0, 1, 2}) {
        for (std::size_t at = 1; at <= operations; ++at) {
            SCOPED_TRACE("kind " + std::to_string(kind) + ", operation " + std::to_string(at));
            fs::remove_all(folder / "record");
            FaultyFileSystem system(unsynced_file_system());
            Fault fault;
            fault.at = at;
            fault.error = {kind == 0 ? ErrorCode::no_space : ErrorCode::io, "injected"};
            fault.written_first = 60;
            fault.dead_after = kind == 2;
            system.inject(fault);
            std::set<std::int64_t> promised;  // by all ranks: the last one comes last
            const auto packed =
                pack_history(system, folder / "run", folder / "record", how, [&](const PackedStep& step) {
                    if (step.rank + 1 == static_cast<std::uint32_t>(ranks)) promised.insert(step.step);
                    return true;
                });
            if (kind == 2) system.power_cut(at % 4);
            system.inject({});
            const auto history = History::open(folder / "record");
            if (history) {
                std::set<std::int64_t> there;
                for (const HistoryStep& step : history->steps)
                    there.insert(step.step);
                for (const std::int64_t step : promised)
                    EXPECT_TRUE(there.contains(step));
                expect_record(folder / "record", truth, there);
            } else {
                EXPECT_TRUE(promised.empty());
            }
            PackOptions on = how;
            on.append = true;
            const auto rest = pack_history(system, folder / "run", folder / "record", on, {});
            ASSERT_TRUE(rest) << rest.error().message;
            expect_record(folder / "record", truth);
            EXPECT_TRUE(unnamed_files(folder / "record").empty());
            if (::testing::Test::HasFailure()) return;
        }
    }
}

TEST(Pack, AnyFaultLeavesWholeSteps) { any_fault_leaves_whole_steps(1, 3, {}); }

TEST(Pack, AnyFaultLeavesWholeStepsOfSharedFiles) {
    SessionSettings shared;
    shared.shared_files = SharedFiles::one;
    any_fault_leaves_whole_steps(2, 2, shared);
}

}  // namespace
}  // namespace twinrun
