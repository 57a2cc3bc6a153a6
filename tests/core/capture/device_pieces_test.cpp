// Elements of arrays on devices: the data files are those of the same run from the host, byte for byte, whatever the arrays'
// sizes, types, strides and devices are, and whoever brings the pieces.
#include "capture/device_pieces.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "support/device.hpp"
#include "support/device_faults.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Random = std::mt19937_64;

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::u8, DType::i64, DType::c128};

// One field: items with gaps between them where step > 1, in memory that has another byte order where `swap`.
struct Field {
    std::string name;
    DType dtype = DType::f32;
    std::uint64_t items = 0;
    std::uint64_t step = 1;
    bool swap = false;
    int device = kHostMemory;
    std::vector<std::byte> dense;  // the items, native
};

Field some_field(std::size_t number, std::uint64_t items, Random& random, const std::vector<int>& devices) {
    Field f;
    f.name = "field" + std::to_string(number);
    f.dtype = kTypes[random() % std::size(kTypes)];
    f.items = items;
    f.step = random() % 4 == 0 ? 3 : 1;
    f.swap = random() % 8 == 0;
    f.device = random() % 6 == 0 ? kHostMemory : devices[random() % devices.size()];
    f.dense.resize(items * item_bytes(f.dtype));
    for (std::byte& b : f.dense)
        b = static_cast<std::byte>(random() >> 13);
    return f;
}

// The field's memory as its array has it.
std::vector<std::byte> laid_out(const Field& f) {
    const std::size_t item = item_bytes(f.dtype);
    const std::size_t scalar = item_bytes(scalar_type(f.dtype));
    std::vector<std::byte> memory(f.items * f.step * item, std::byte{0x5A});
    for (std::uint64_t i = 0; i < f.items; ++i) {
        std::byte* const to = memory.data() + i * f.step * item;
        std::memcpy(to, f.dense.data() + i * item, item);
        for (std::size_t s = 0; f.swap && s < item; s += scalar)
            std::reverse(to + s, to + s + scalar);
    }
    return memory;
}

class DevicePiecesTest : public ::testing::Test {
   protected:
    void SetUp() override {
        folder_ = testing::quick_folder() / ("twinrun_device_pieces_" + std::to_string(getpid()));
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }

    using Files = std::map<std::string, std::vector<std::byte>>;
    // The data files of a run, by name. in_use, done: called when the arrays are there, and when the
    // run is closed.
    Files captured(
        const std::string& name, const std::vector<Field>& fields, bool on_devices,
        const SessionSettings& settings, std::int64_t steps = 3, bool may_fail = false,
        const std::function<void()>& in_use = [] {}, const std::function<void()>& done = [] {}) {
        const std::string path = (folder_ / name).string();
        std::vector<OnDevice> memory;
        std::vector<CapturedField> list;
        for (const Field& f : fields) {
            CapturedField one;
            one.name = f.name;
            one.dtype = f.dtype;
            one.shape = {f.items};
            one.data = f.dense.data();
            if (on_devices && f.device != kHostMemory) {
                memory.emplace_back(f.device, std::span<const std::byte>(laid_out(f)));
                DeviceArray array;
                array.device = f.device;
                array.data = memory.back().data();
                array.dtype = f.dtype;
                array.shape = one.shape;
                array.swap = f.swap;
                if (f.step != 1) array.strides = {static_cast<std::int64_t>(f.step * item_bytes(f.dtype))};
                one.device = array;
            }
            list.push_back(one);
        }
        in_use();
        auto session = testing::open_run(testing::unsynced_file_system(), path, settings);
        EXPECT_TRUE(session) << session.error().message;
        for (std::int64_t step = 0; session && step < steps; ++step) {
            const auto taken = (*session)->capture_fields(step, list);
            EXPECT_TRUE(taken || may_fail) << taken.error().message;
        }
        if (session) {
            const auto lost = (*session)->close();
            EXPECT_TRUE((lost && lost->empty()) || may_fail);
        }
        done();
        Files files;
        for (const auto& entry : fs::recursive_directory_iterator(path)) {
            if (entry.path().extension() != ".data") continue;
            auto bytes = read_whole_file(entry.path().string(), 1 << 30);
            EXPECT_TRUE(bytes);
            if (bytes) files[fs::relative(entry.path(), path).string()] = std::move(bytes).value();
        }
        fs::remove_all(path);
        return files;
    }

    fs::path folder_;
};

TEST_F(DevicePiecesTest, EqualThoseFromTheHost) {
    TWR_TEST_DEVICE(device);
    const std::vector<int> devices = probe_devices().usable();
    Random random(7);
    for (int round = 0; round < test_rounds(24); ++round) {
        std::vector<Field> fields;
        const std::size_t count = round % 4 == 0 ? 300 : 1 + random() % 12;
        for (std::size_t f = 0; f < count; ++f) {
            const std::uint64_t most = count > 100 ? 2000 : random() % 2 == 0 ? 600'000 : 5000;
            fields.push_back(some_field(f, random() % 8 == 0 ? 0 : random() % most, random, devices));
        }
        SessionSettings settings;
        settings.history.tolerance.atol = 1e-6;
        settings.threads = static_cast<int>(1 + random() % 6);
        settings.background = round % 3 != 0;
        settings.memory_bytes = 32 << 20;
        // Copied on the device first; or not, because there is no room.
        settings.device_bytes = random() % 3 == 0 ? 0 : random() % 2 == 0 ? 256 << 20 : 1000;
        SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(count) + " fields, " +
                     std::to_string(settings.threads) + " threads, background " +
                     std::to_string(settings.background) + ", device memory " +
                     std::to_string(settings.device_bytes));
        const auto from_host = captured("host", fields, false, settings);
        const auto from_devices = captured("devices", fields, true, settings);
        ASSERT_EQ(from_devices.size(), from_host.size());
        EXPECT_TRUE(std::any_of(from_host.begin(), from_host.end(),
                                [](const auto& file) { return !file.second.empty(); }) ||
                    count < 12);
        for (const auto& [name, bytes] : from_host) {
            const auto there = from_devices.find(name);
            ASSERT_TRUE(there != from_devices.end()) << name;
            EXPECT_TRUE(there->second == bytes) << name;
        }
        if (HasFailure()) return;
    }
}

// Several threads, each of which may lack memory or lose its device: what is there is whole.
TEST_F(DevicePiecesTest, AreWholeOrNotThereWhicheverCallFails) {
    TWR_FAKE_DEVICE(fake);
    const std::vector<int> devices = probe_devices().usable();
    Random random(8);
    std::vector<Field> fields;
    for (std::size_t f = 0; f < 3; ++f) {
        fields.push_back(some_field(f, 500'000, random, devices));
        fields.back().device = f == 1 ? devices.back() : devices.front();
        fields.back().step = f == 1 ? 3 : 1;
        fields.back().swap = false;
    }
    for (const bool background : {false, true}) {
        SessionSettings settings;
        settings.history.tolerance.atol = 1e-6;
        settings.threads = 4;
        settings.background = background;
        settings.memory_bytes = 32 << 20;
        const Files wanted = captured("host", fields, false, settings, 1);
        ASSERT_EQ(wanted.size(), 1U);
        std::uint64_t calls = 0;
        ASSERT_TRUE(captured(
                        "devices", fields, true, settings, 1, false, [&] { fake->fail(""); },
                        [&] { calls = fake->calls("any"); }) == wanted);
        ASSERT_GT(calls, 0U);
        std::size_t lost = 0;
        for (const std::string code : {"out_of_memory", "io"}) {
            for (std::uint64_t at = 1; at <= calls; at += calls / 40 + 1) {
                const std::string fault = "any:" + std::to_string(at) + ":" + code;
                SCOPED_TRACE(fault + ", background " + std::to_string(background));
                const Files there = captured(
                    "devices", fields, true, settings, 1, true,
                    [&] { ASSERT_TRUE(fake->fail(fault.c_str())); }, [&] { fake->fail(""); });
                lost += there.empty() ? 1 : 0;
                EXPECT_TRUE(there.empty() || there == wanted);
                if (HasFailure()) return;
            }
        }
        EXPECT_GT(lost, 0U);
    }
}

}  // namespace
}  // namespace twinrun
