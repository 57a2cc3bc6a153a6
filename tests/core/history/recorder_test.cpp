#include "history/recorder.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "support/record.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using testing::FreshFolder;
using testing::RecordBytes;

// A run whose weights change in a few elements at random places, in every chunk: what is new is kept after XOR.
class Tuned {
   public:
    Tuned(std::size_t bytes, std::uint64_t one_of) : one_of_(one_of), weights_(bytes / 2) {
        std::normal_distribution<float> normal(0, 0.02F);
        for (std::uint16_t& weight : weights_)
            weight = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random_)) >> 16);
    }
    void change() {
        for (std::uint16_t& weight : weights_) {
            if (random_() % one_of_ == 0) weight = static_cast<std::uint16_t>(weight ^ (1 + random_() % 255));
        }
    }
    [[nodiscard]] RecordBytes bytes() const { return testing::bytes_of(weights_); }

   private:
    std::mt19937_64 random_{test_seed(263)};
    std::uint64_t one_of_;
    std::vector<std::uint16_t> weights_;
};

class Record {
   public:
    Record() { open(0); }
    // As by another process: it knows what the files say.
    void open(std::uint32_t first) {
        RecorderOptions options;
        options.settings.codec = PayloadCodec::zstd;
        options.settings.xored = true;
        auto made = Recorder::create(
            options, [this](std::uint32_t i) -> Result<DifferencePlace> { return DifferencePlace{path(i)}; },
            first);
        ASSERT_TRUE(made.ok()) << made.error().message;
        recorder_ = std::move(*made);
        if (first != 0) {
            ASSERT_TRUE(recorder_->rebase(first - 1).ok());
        }
    }
    void add(const RecordBytes& bytes) {
        RecordDirectory directory;
        directory.files = {{"f", bytes.size()}};
        directory.segments = {{"w", 0, 0, bytes.size(), 0}};
        const ImageSegment segment{"w", bytes.data(), bytes.size(), std::nullopt, DType::u8};
        const auto done = recorder_->record(testing::unsynced_file_system(), path(recorder_->next_ordinal()),
                                            std::move(directory), {&segment, 1});
        ASSERT_TRUE(done.ok()) << done.error().message;
        payload.push_back(done->payload_bytes);
    }
    [[nodiscard]] std::string path(std::uint32_t ordinal) const { return folder_ / std::to_string(ordinal); }
    // Bytes of payload that were read for a step.
    std::uint64_t read(std::uint32_t step, const RecordBytes& expected) {
        RecordChain chain(
            [this](std::uint32_t i) -> Result<DifferencePlace> { return DifferencePlace{path(i)}; }, 2);
        const auto map = chain.map(step);
        EXPECT_TRUE(map.ok());
        RecordBytes to(expected.size());
        const auto done = chain.read_segment(*map, 0, to);
        EXPECT_TRUE(done.ok()) << done.error().message;
        EXPECT_EQ(to, expected) << step;
        return chain.reads().bytes;
    }
    std::vector<std::uint64_t> payload;

   private:
    FreshFolder folder_;
    std::unique_ptr<Recorder> recorder_;
};

// Any step of 1,000 is read in at most twice the bytes of the first one, and most steps are a small part of it.
TEST(RecorderReads, AnyStepTakesTwiceTheBytesOfTheFirst) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    constexpr std::uint32_t kSteps = 1000;
    Record record;
    Tuned run(std::size_t{64} << 10, 33);
    std::map<std::uint32_t, RecordBytes> some;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
        if (step == 500) record.open(step);
        const RecordBytes bytes = run.bytes();
        record.add(bytes);
        if (step % 61 == 0 || step + 34 > kSteps || (step > 498 && step < 520)) some[step] = bytes;
        run.change();
    }
    const std::uint64_t first = record.read(0, some.at(0));
    for (const auto& [step, bytes] : some)
        EXPECT_LE(record.read(step, bytes), 2 * first + first / 50) << step;
    std::size_t small = 0;
    for (const std::uint64_t bytes : record.payload)
        small += bytes < (std::size_t{64} << 10) / 18 ? 1 : 0;
    EXPECT_GT(small, kSteps * 9 / 10);
}

// Where XOR saves little, it is not taken again and again.
TEST(RecorderReads, XorThatSavesLittleIsTakenOnce) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    Record record;
    Tuned run(std::size_t{64} << 10, 2);
    std::vector<RecordBytes> past;
    for (std::uint32_t step = 0; step < 20; ++step) {
        past.push_back(run.bytes());
        record.add(past.back());
        run.change();
    }
    const std::uint64_t first = record.read(0, past[0]);
    for (std::uint32_t step = 0; step < past.size(); ++step)
        EXPECT_LE(record.read(step, past[step]), 2 * first + first / 50) << step;
}

}  // namespace
}  // namespace twinrun
