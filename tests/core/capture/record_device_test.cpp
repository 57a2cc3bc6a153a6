// Records of arrays that are on devices: every step comes back bit for bit, and is kept as the same bytes as one from the host.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "history/check_record.hpp"
#include "history/history.hpp"
#include "history/record_residues.hpp"
#include "history/record_store.hpp"
#include "history/restore.hpp"
#include "history/writer.hpp"
#include "support/device.hpp"
#include "support/device_faults.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHostItems = 500;        // items of the field that is always on the host
constexpr std::size_t kDeviceItems = 100'000;  // of one on a device

// Most blocks of 512 items stay as they were for some steps.
double value_at(std::int64_t step, std::size_t field, std::size_t i) {
    const auto block = static_cast<std::int64_t>(i / 512);
    const std::int64_t since = step - ((step - block) & 7);
    return static_cast<double>(since) + 1e-3 * static_cast<double>(field) +
           1e-9 * static_cast<double>(i % 977);
}

class DeviceRecord : public ::testing::Test {
   protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        folder_ = testing::quick_folder() / ("twinrun_" + std::string(info->test_suite_name()) + "_" +
                                             std::string(info->name()) + "_" + std::to_string(getpid()));
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }

    // Field 0 on the host; 1 and 3 on the first device, 2 with gaps on the last one. residues_there:
    // all residues are on the first device: field 2 is, too, and field 0 is exact, so it has none.
    struct State {
        explicit State(bool on_device = true, bool residues_there = false)
            : values(4), host_is_exact(residues_there) {
            const std::vector<int> devices = probe_devices().usable();
            for (std::size_t f = 0; f < values.size(); ++f) {
                values[f].resize(f == 0 ? kHostItems : f == 2 ? 2 * kHostItems : kDeviceItems);
                if (f == 0 || !on_device) continue;
                device.push_back(f == 2 && !residues_there ? devices.back() : devices.front());
                memory.emplace_back(device.back(), values[f].size() * sizeof(double));
            }
        }
        void become(std::int64_t step) {
            for (std::size_t f = 0; f < values.size(); ++f) {
                for (std::size_t i = 0; i < values[f].size(); ++i)
                    values[f][i] = value_at(step, f, i);
                if (f != 0) memory[f - 1].put(values[f].data(), values[f].size() * sizeof(double));
            }
        }
        std::vector<CapturedField> list(bool on_device) {
            std::vector<CapturedField> all(values.size());
            for (std::size_t f = 0; f < all.size(); ++f) {
                all[f].name = "field" + std::to_string(f);
                all[f].dtype = DType::f64;
                all[f].shape = {f == 2 ? kHostItems : values[f].size()};
                all[f].data = values[f].data();
                if (f == 2) all[f].stride = 2 * sizeof(double);
                if (f == 0 && host_is_exact) {
                    all[f].own_tolerance = true;
                    all[f].tolerance = {};
                }
                if (f == 0 || !on_device) continue;
                DeviceArray array;
                array.device = device[f - 1];
                array.data = memory[f - 1].data();
                array.dtype = DType::f64;
                array.shape = all[f].shape;
                if (f == 2) array.strides = {2 * sizeof(double)};
                all[f].device = array;
            }
            return all;
        }
        std::vector<std::vector<double>> values;
        bool host_is_exact;
        std::vector<int> device;
        std::vector<OnDevice> memory;
    };

    static SessionSettings settings(const std::string& way) {
        SessionSettings s;
        s.history.tolerance.atol = 1e-6;
        s.memory_bytes = 32 << 20;
        s.threads = 2;
        s.record = RecordMethod::runs;
        s.record_settings.codec = PayloadCodec::stored;
        s.background = way != "waits" && way != "residues wait";
        s.device_bytes = way == "staged" || way == "residues staged" || way == "xored" || way == "packed"
                             ? 64 << 20
                         : way == "crowded" ? 1000
                                            : 0;
        if (way == "xored" || way == "packed") s.record_settings.codec = default_record().codec;
        s.record_settings.xored = way == "xored" && s.record_settings.codec != PayloadCodec::stored;
        return s;
    }
    std::string run(const std::string& name) const { return (folder_ / name).string(); }

    // Every step bit for bit to the host, and to devices.
    static void check(const std::string& path, std::size_t steps, bool to_devices = true) {
        const auto history = History::open(path);
        ASSERT_TRUE(history) << history.error().message;
        ASSERT_EQ(history->steps.size(), steps);
        State state(to_devices);
        for (const HistoryStep& step : history->steps) {
            Journal journal;
            journal.steps.put(step.step, {step.folder, step.ranks[0]});
            for (auto& field : state.values)
                std::fill(field.begin(), field.end(), -1.0);
            auto fields = state.list(false);
            const auto restored = restore_step({{path, journal}}, step.step, fields);
            ASSERT_TRUE(restored) << path << ": " << restored.error().message;
            for (std::size_t f = 0; f < state.values.size(); ++f) {
                const std::size_t stride = f == 2 ? 2 : 1;
                for (std::size_t i = 0; i < state.values[f].size(); i += stride)
                    ASSERT_EQ(state.values[f][i], value_at(step.step, f, i))
                        << path << ", " << f << ", " << i;
            }
            if (!to_devices) continue;
            fields = state.list(true);
            fields.erase(fields.begin() + 2);  // not dense
            const auto there = restore_step({{path, journal}}, step.step, fields);
            ASSERT_TRUE(there) << path << ": " << there.error().message;
            for (const std::size_t f : {1U, 3U}) {
                const auto values = state.memory[f - 1].values<double>();
                for (std::size_t i = 0; i < values.size(); ++i)
                    ASSERT_EQ(values[i], value_at(step.step, f, i)) << path << ", " << f << ", " << i;
            }
        }
        const auto problems = check_record(path, 0, 1);
        ASSERT_TRUE(problems) << problems.error().message;
        for (const RecordProblem& problem : *problems)
            ADD_FAILURE() << problem.what;
    }
    // The differences of a record, by name.
    static std::map<std::string, std::vector<std::byte>> differences(const std::string& path) {
        std::map<std::string, std::vector<std::byte>> all;
        for (const auto& entry : fs::recursive_directory_iterator(path)) {
            if (entry.path().extension() != ".twr") continue;
            auto bytes = read_whole_file(entry.path().string(), 1 << 30);
            EXPECT_TRUE(bytes);
            if (bytes) all[fs::relative(entry.path(), path).string()] = std::move(bytes).value();
        }
        return all;
    }

    fs::path folder_;
};

TEST_F(DeviceRecord, EqualsOneFromTheHost) {
    TWR_TEST_DEVICE(device);
    const testing::FakeDeviceControl* const fake = testing::fake_device();
    for (const std::string way : {"host", "waits", "staged", "crowded", "background", "xored", "packed"}) {
        State state;
        const std::uint64_t before = fake == nullptr ? 0 : fake->calls("find_changed");
        // Twice: a run goes on with what another one began.
        for (int part = 0; part < 2; ++part) {
            SessionSettings s = settings(way);
            s.existing = part == 0 ? Existing::refuse : Existing::append;
            auto session = testing::open_run(testing::unsynced_file_system(), run(way), s);
            ASSERT_TRUE(session) << session.error().message;
            for (std::int64_t step = 6 * part; step < 6 * part + 6; ++step) {
                state.become(step);
                const auto taken = (*session)->capture_fields(step, state.list(way != "host"));
                ASSERT_TRUE(taken) << taken.error().message;
            }
            const auto lost = (*session)->close();
            ASSERT_TRUE(lost && lost->empty()) << (lost ? lost->front().error.message : lost.error().message);
        }
        ASSERT_NO_FATAL_FAILURE(check(run(way), 12));
        if (fake != nullptr) {
            const bool there = way == "waits" || way == "staged" || way == "xored" || way == "packed";
            EXPECT_EQ(fake->calls("find_changed") != before, there) << way;
        }
        if (way == "host" || way == "xored" || way == "packed") continue;
        EXPECT_TRUE(differences(run(way)) == differences(run("host"))) << way;
    }
}

// What is not to be read where it is goes to the host, and back.
TEST_F(DeviceRecord, FieldsMoveBetweenHostAndDevice) {
    TWR_TEST_DEVICE(device);
    State state;
    auto session = testing::open_run(testing::unsynced_file_system(), run("run"), settings("staged"));
    ASSERT_TRUE(session) << session.error().message;
    for (std::int64_t step = 0; step < 9; ++step) {
        state.become(step);
        const auto taken = (*session)->capture_fields(step, state.list(step % 3 != 1));
        ASSERT_TRUE(taken) << taken.error().message;
    }
    const auto lost = (*session)->close();
    ASSERT_TRUE(lost && lost->empty()) << (lost ? lost->front().error.message : lost.error().message);
    ASSERT_NO_FATAL_FAILURE(check(run("run"), 9));
}

// Residues of all fields of step `step`, which the metadata's checksums are held against.
std::vector<std::vector<std::byte>> residues_of(const std::string& path, std::size_t step) {
    std::vector<std::vector<std::byte>> all;
    const auto history = History::open(path);
    const auto store = RecordStore::open(path, 0, 1);
    EXPECT_TRUE(history && store);
    const HistoryStep& of = history->steps[step];
    auto metadata = MetadataFile::open((fs::path(path) / of.folder / of.ranks[0].metadata).string());
    EXPECT_TRUE(metadata) << metadata.error().message;
    read_residues_from(*store, of.ranks[0].difference, **metadata);
    for (std::size_t f = 0; f < (*metadata)->directory().fields.size(); ++f) {
        auto& bytes = all.emplace_back((*metadata)->directory().fields[f].place(Section::residues).length);
        const auto read = (*metadata)->read(f, Section::residues, 0, bytes);
        EXPECT_TRUE(read) << path << ", " << f << ": " << read.error().message;
    }
    return all;
}

// Residues that stay on the device until they are recorded are those of the host, with the same checksums.
TEST_F(DeviceRecord, ResiduesStayOnTheDevice) {
    TWR_TEST_DEVICE(device);
    const testing::FakeDeviceControl* const fake = testing::fake_device();
    constexpr std::int64_t kSteps = 4;
    for (const std::string way : {"host", "waits", "staged", "packed", "no room", "crowded", "mixed"}) {
        State state(true, way != "mixed");
        SessionSettings s = settings(way);
        if (way == "no room") {
            // For copies of the arrays, and no byte more.
            s.device_bytes = 2 * kDeviceItems * sizeof(double) + kHostItems * sizeof(double) + 3 * 256;
        }
        if (way == "mixed") s.device_bytes = 64 << 20;
        const std::uint64_t before = fake == nullptr ? 0 : fake->calls("hash_chunks");
        {
            auto session = testing::open_run(testing::unsynced_file_system(), run(way), s);
            ASSERT_TRUE(session) << session.error().message;
            for (std::int64_t step = 0; step < kSteps; ++step) {
                state.become(step);
                const auto taken = (*session)->capture_fields(step, state.list(way != "host"));
                ASSERT_TRUE(taken) << taken.error().message;
            }
            const auto lost = (*session)->close();
            ASSERT_TRUE(lost && lost->empty()) << (lost ? lost->front().error.message : lost.error().message);
        }
        ASSERT_NO_FATAL_FAILURE(check(run(way), kSteps));
        if (fake != nullptr) {
            const bool stay = way == "waits" || way == "staged" || way == "packed";
            EXPECT_EQ(fake->calls("hash_chunks") != before, stay) << way;
        }
        for (std::size_t step = 0; step < kSteps && way != "host" && way != "mixed"; ++step) {
            const auto found = residues_of(run(way), step);
            EXPECT_GT(found[1].size(), 4096U);
            EXPECT_EQ(found, residues_of(run("host"), step)) << way << ", " << step;
        }
        if (way == "host" || way == "packed" || way == "mixed") continue;
        EXPECT_TRUE(differences(run(way)) == differences(run("host"))) << way;
    }
}

class DeviceRecordFaults : public DeviceRecord {};

// Any call of the device library fails: a step that is listed is whole, and so are those behind it.
TEST_F(DeviceRecordFaults, TakeNoOtherStep) {
    TWR_FAKE_DEVICE(fake);
    constexpr std::int64_t kSteps = 4;
    std::vector<State> plain;
    std::vector<State> with_residues;
    for (std::int64_t step = 0; step < kSteps; ++step) {
        plain.emplace_back().become(step);
        with_residues.emplace_back(true, true).become(step);
    }
    for (const std::string way : {"waits", "staged", "packed", "residues wait", "residues staged"}) {
        std::vector<State>& states = way.starts_with("residues") ? with_residues : plain;
        std::size_t lost_in_all = 0;
        std::size_t runs = 0;
        testing::fail_each_call(*fake, testing::LessMemory::may_fail, [&]() -> Result<> {
            const std::string path = run(way + std::to_string(runs++));
            std::optional<Error> failure;
            std::size_t lost = 0;
            const auto tell = [&](const Error& error) {
                failure = error;
                ++lost;
            };
            {
                auto session = testing::open_run(testing::unsynced_file_system(), path, settings(way));
                if (!session) return std::move(session).error();
                for (std::int64_t step = 0; step < kSteps; ++step) {
                    const auto taken =
                        (*session)->capture_fields(step, states[static_cast<std::size_t>(step)].list(true));
                    if (!taken) tell(taken.error());
                    for (const LostStep& one : taken ? taken->lost : std::vector<LostStep>())
                        tell(one.error);
                }
                const auto closed = (*session)->close();
                if (!closed) return closed.error();
                for (const LostStep& one : *closed)
                    tell(one.error);
            }
            lost_in_all += lost;
            check(path, static_cast<std::size_t>(kSteps) - lost, false);
            fs::remove_all(path);
            if (failure) return *failure;
            return success();
        });
        EXPECT_LT(2 * lost_in_all, runs * kSteps) << way;  // the host does what the device cannot
    }
}

}  // namespace
}  // namespace twinrun
