// Histories captured from arrays on a device equal those captured from the same arrays on the host.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "engine/compare.hpp"
#include "history/history.hpp"
#include "support/device.hpp"
#include "support/faulty_file_system.hpp"
#include "support/session.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFileSystem;

class DeviceHistory : public testing::FolderTest {
   protected:
    void SetUp() override {
        if (probe_devices().usable().empty()) GTEST_SKIP() << probe_devices().reason;
        device_ = probe_devices().usable().front();
        values_.resize(1'300'000);
        for (std::size_t i = 0; i < values_.size(); ++i)
            values_[i] = std::sin(static_cast<double>(i) * 0.001);
        memory_ = std::make_unique<OnDevice>(device_, std::span<const double>(values_));
    }
    void TearDown() override {
        if (!folder_.empty()) fs::remove_all(folder_);
    }

    static CapturedField field(const std::string& name, std::vector<std::uint64_t> shape) {
        CapturedField f;
        f.name = name;
        f.dtype = DType::f64;
        f.shape = std::move(shape);
        return f;
    }
    DeviceArray array(std::vector<std::uint64_t> shape, std::vector<std::int64_t> strides = {}) const {
        DeviceArray a;
        a.device = device_;
        a.dtype = DType::f64;
        a.data = memory_->data();
        a.shape = std::move(shape);
        a.strides = std::move(strides);
        return a;
    }
    // Dense, every second, none, one: from the host, or (but for the first) from the device.
    std::vector<CapturedField> fields(bool on_device) const {
        std::vector<CapturedField> all = {field("host", {5000}), field("dense", {1300, 1000}),
                                          field("strided", {600'000}), field("empty", {0, 3}),
                                          field("one", {})};
        for (CapturedField& f : all)
            f.data = values_.data();
        all[2].stride = 16;
        if (!on_device) return all;
        for (std::size_t i = 1; i < all.size(); ++i) {
            all[i].data = nullptr;
            all[i].device = array(all[i].shape);
        }
        all[2].device->strides = {16};
        return all;
    }
    std::string run(const std::string& name) const { return (folder_ / name).string(); }
    static HistorySettings settings(bool keep_data) {
        HistorySettings s;
        s.tolerance.atol = 1e-6;
        s.keep_data = keep_data;
        return s;
    }
    std::shared_ptr<MetadataFile> metadata(const std::string& name) const {
        auto history = History::open(run(name));
        EXPECT_TRUE(history);
        const HistoryStep& step = history->steps.front();
        auto file = MetadataFile::open((fs::path(run(name)) / step.folder / step.ranks[0].metadata).string());
        EXPECT_TRUE(file) << file.error().message;
        return std::move(file).value();
    }
    static std::vector<std::byte> section(MetadataFile& file, std::size_t field, Section section) {
        std::vector<std::byte> bytes(file.directory().fields[field].place(section).length);
        const auto read = file.read(field, section, 0, bytes);
        EXPECT_TRUE(read) << read.error().message;
        return bytes;
    }

    void same_as_host(bool keep_data, const std::string& of_device, const std::string& of_host) const {
        SCOPED_TRACE(of_device);
        const auto host = metadata(of_host);
        const auto device = metadata(of_device);
        ASSERT_EQ(host->directory().fields.size(), device->directory().fields.size());
        for (std::size_t f = 0; f < host->directory().fields.size(); ++f) {
            const FieldMetadata& x = host->directory().fields[f];
            const FieldMetadata& y = device->directory().fields[f];
            EXPECT_EQ(x.counts.tokens, y.counts.tokens);
            EXPECT_EQ(x.largest_sampled, y.largest_sampled) << x.name;
            EXPECT_EQ(x.extents, y.extents);
            for (const Section s : {Section::tree, Section::fine, Section::residues})
                EXPECT_EQ(section(*host, f, s), section(*device, f, s)) << x.name;
            const std::size_t sums = section(*device, f, Section::data_sums).size();
            if (keep_data) {
                EXPECT_EQ(section(*host, f, Section::data_sums), section(*device, f, Section::data_sums))
                    << x.name;
            } else {
                EXPECT_EQ(sums, 0U) << x.name;  // no element came to the host
            }
            CompareOptions options;
            options.rule.tolerance.atol = 1e-6;
            const auto same = compare_field({nullptr, host.get(), f}, {nullptr, device.get(), f}, options);
            ASSERT_TRUE(same) << same.error().message;
            EXPECT_TRUE(same->same());
        }
        if (!keep_data) return;
        EXPECT_TRUE(device->check_data_files());
        const std::string x = host->data_path(0);
        const std::string y = device->data_path(0);
        auto bytes_x = read_whole_file(x, 1 << 30);
        auto bytes_y = read_whole_file(y, 1 << 30);
        ASSERT_TRUE(bytes_x && bytes_y);
        EXPECT_TRUE(*bytes_x == *bytes_y);
    }

    int device_ = 0;
    std::vector<double> values_;
    std::unique_ptr<OnDevice> memory_;
};

TEST_F(DeviceHistory, EqualsOneFromTheHost) {
    for (const bool keep_data : {true, false}) {
        const std::string suffix = keep_data ? "_data" : "";
        // From the host; from devices at once; in the background; resting in device memory first; and where that is too small.
        const std::vector<std::string> ways{"host", "device", "background", "staged", "crowded"};
        for (const std::string& way : ways) {
            SessionSettings s;
            s.history = settings(keep_data);
            s.background = way != "host" && way != "device";
            s.memory_bytes = 16 << 20;
            s.device_bytes = way == "staged" ? 16 << 20 : way == "crowded" ? 1000 : 0;
            auto writer = testing::open_run(posix_file_system(), run(way + suffix), s);
            ASSERT_TRUE(writer) << writer.error().message;
            const auto owner = std::make_shared<int>(1);
            for (const std::int64_t step : {7, 8, 9}) {
                std::vector<CapturedField> captured = fields(way != "host");
                for (CapturedField& field : captured) {
                    if (field.device) field.device->owner = owner;
                }
                const auto facts = (*writer)->capture_fields(step, std::move(captured));
                ASSERT_TRUE(facts) << facts.error().message;
                if (way == "device") {
                    EXPECT_EQ(owner.use_count(), 1);
                }
            }
            const auto lost = (*writer)->close();
            ASSERT_TRUE(lost && lost->empty()) << (lost ? lost->front().error.message : lost.error().message);
            EXPECT_EQ(owner.use_count(), 1) << "memory of the application is held for longer than its work";
        }
        for (std::size_t w = 1; w < ways.size(); ++w)
            same_as_host(keep_data, ways[w] + suffix, "host" + suffix);
    }
}

TEST_F(DeviceHistory, AFaultLeavesNothingBehind) {
    FaultyFileSystem system;
    auto writer = testing::open_run(system, run("run"), settings(true));
    ASSERT_TRUE(writer);
    const std::size_t before = system.operations();
    ASSERT_TRUE((*writer)->capture_fields(0, fields(true)));
    const std::size_t operations = system.operations() - before;
    for (std::size_t at = 1; at <= operations; ++at) {
        Fault fault;
        fault.at = at;
        system.inject(fault);
        const auto step = static_cast<std::int64_t>(at);
        const auto captured = (*writer)->capture_fields(step, fields(true));
        system.inject({});
        const auto history = History::open(run("run"));
        ASSERT_TRUE(history) << history.error().message;
        const bool listed = std::any_of(history->steps.begin(), history->steps.end(),
                                        [&](const HistoryStep& s) { return s.step == step; });
        EXPECT_TRUE(listed || !captured) << at;
    }
    ASSERT_TRUE((*writer)->capture_fields(1'000'000, fields(true)));
}

TEST_F(DeviceHistory, AnArrayThatDoesNotFitIsRefused) {
    auto writer = testing::open_run(posix_file_system(), run("run"), settings(false));
    ASSERT_TRUE(writer);
    CapturedField f = field("x", {100});
    f.device = array({99});
    const auto size = (*writer)->capture_fields(1, {f});
    ASSERT_FALSE(size);
    EXPECT_NE(size.error().message.find("'x'"), std::string::npos);
    f.device = array({100}, {12});
    EXPECT_FALSE((*writer)->capture_fields(1, {f}));
    f.device = array({100});
    EXPECT_TRUE((*writer)->capture_fields(1, {f}));
}

}  // namespace
}  // namespace twinrun
