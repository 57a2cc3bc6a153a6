// Calls of the device library fail, each in its turn, while a step is captured from arrays on devices. With the fake device
// library only.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "engine/compare.hpp"
#include "history/history.hpp"
#include "support/device_faults.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

// Files of a history: the manifest and the first step with what is in them, the others with their sizes.
std::map<std::string, std::vector<std::byte>> contents(const fs::path& folder) {
    std::map<std::string, std::vector<std::byte>> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        if (!entry.is_regular_file()) continue;
        const std::string name = fs::relative(entry.path(), folder).string();
        if (name != "manifest.jsonl" && !name.starts_with("step-0000000000")) {
            all[name].resize(sizeof(std::uintmax_t));
            const std::uintmax_t size = entry.file_size();
            std::memcpy(all[name].data(), &size, sizeof size);
            continue;
        }
        auto bytes = read_whole_file(entry.path().string(), 1 << 30);
        EXPECT_TRUE(bytes) << bytes.error().message;
        all[name] = std::move(bytes).value();
    }
    return all;
}

TEST(DeviceCaptureFaults, LeaveNoHalfStepAndNothingBehind) {
    TWR_FAKE_DEVICE(fake);
    const std::vector<int> devices = probe_devices().usable();
    std::vector<double> values(60'000);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = std::sin(static_cast<double>(i) * 0.001);
    const OnDevice first(devices.front(), std::span<const double>(values));
    const OnDevice last(devices.back(), std::span<const double>(values));
    std::vector<CapturedField> fields(3);
    for (std::size_t f = 0; f < fields.size(); ++f) {
        fields[f].name = std::string(1, static_cast<char>('a' + f));
        fields[f].dtype = DType::f64;
        fields[f].shape = {f == 1 ? 30'000U : 60'000U};
        DeviceArray array;
        array.dtype = DType::f64;
        array.shape = fields[f].shape;
        array.device = f == 0 ? devices.front() : devices.back();
        array.data = f == 0 ? first.data() : last.data();
        if (f == 1) array.strides = {16};
        if (f != 2) fields[f].device = array;
    }
    fields[2].data = values.data();
    const fs::path folder = fs::temp_directory_path() / ("twinrun_device_faults_" + std::to_string(getpid()));
    for (const bool keep_data : {true, false}) {
        fs::remove_all(folder);
        HistorySettings settings;
        settings.tolerance.atol = 1e-6;
        settings.keep_data = keep_data;
        const auto created = testing::open_run(posix_file_system(), folder.string(), settings);
        ASSERT_TRUE(created) << created.error().message;
        Session& writer = **created;
        ASSERT_TRUE(writer.capture_fields(0, fields));
        std::int64_t step = 0;
        std::int64_t captured = 1;
        auto before = contents(folder);
        testing::fail_each_call(*fake, testing::LessMemory::may_fail, [&]() -> Result<> {
            ++step;
            auto done = writer.capture_fields(step, fields);
            // Nothing here may fail because of a fault: it is over.
            auto after = contents(folder);
            if (!done) {
                EXPECT_TRUE(after == before);
                return std::move(done).error();
            }
            ++captured;
            const auto history = History::open(folder.string());
            if (!history) return history.error();
            EXPECT_EQ(static_cast<std::int64_t>(history->steps.size()), captured);
            const HistoryStep& made = history->steps.back();
            EXPECT_EQ(made.step, step);
            // What came of it is the first step's, but for the number and times; and earlier steps are as they were.
            const auto metadata = [&](const HistoryStep& of) {
                return MetadataFile::open((folder / of.folder / of.ranks[0].metadata).string()).value();
            };
            const auto x = metadata(history->steps.front());
            const auto y = metadata(made);
            for (std::size_t f = 0; f < fields.size(); ++f) {
                for (const Section s :
                     {Section::tree, Section::fine, Section::residues, Section::data_sums}) {
                    std::vector<std::byte> of_x(x->directory().fields[f].place(s).length);
                    std::vector<std::byte> of_y(y->directory().fields[f].place(s).length);
                    EXPECT_TRUE(x->read(f, s, 0, of_x));
                    EXPECT_TRUE(y->read(f, s, 0, of_y));
                    EXPECT_TRUE(of_x == of_y) << f;
                }
            }
            if (keep_data) {
                const auto data =
                    read_whole_file((folder / made.folder / made.ranks[0].data).string(), 1 << 30);
                EXPECT_TRUE(data && *data == after[history->steps.front().folder + "/" + made.ranks[0].data]);
            }
            for (const auto& [name, bytes] : before) {
                if (name == "manifest.jsonl") {
                    const auto& now = after[name];
                    EXPECT_TRUE(now.size() > bytes.size() &&
                                std::equal(bytes.begin(), bytes.end(), now.begin()));
                } else {
                    EXPECT_TRUE(after[name] == bytes) << name;
                }
            }
            before = std::move(after);
            return success();
        });
        if (HasFailure()) break;
    }
    fs::remove_all(folder);
}

}  // namespace
}  // namespace twinrun
