// Writing while the caller goes on.
#include "record/write_behind.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

using Bytes = std::vector<std::byte>;

// Keeps what is written in memory, and fails from the write `fails_at` on, counted from 1.
class MemoryFile final : public OutputFile {
   public:
    explicit MemoryFile(std::size_t fails_at = 0) : fails_at_(fails_at) {}
    Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        EXPECT_FALSE(at_work_.exchange(true)) << "two writes at once";
        ++writes_;
        threads_.push_back(std::this_thread::get_id());
        const bool fails = fails_at_ != 0 && writes_ >= fails_at_;
        if (!fails) {
            content_.resize(std::max<std::size_t>(content_.size(), offset + bytes.size()));
            std::copy(bytes.begin(), bytes.end(), content_.begin() + static_cast<std::ptrdiff_t>(offset));
        }
        at_work_ = false;
        if (fails) return Error{ErrorCode::no_space, "write " + std::to_string(writes_)};
        return success();
    }
    Result<> sync() override { return success(); }
    void set_time(std::int64_t) override {}
    Result<> close() override { return success(); }
    Bytes content_;
    std::size_t writes_ = 0;
    std::vector<std::thread::id> threads_;

   private:
    std::size_t fails_at_;
    std::atomic<bool> at_work_{false};
};

TEST(WriteBehind, WritesEverythingWhereItBelongs) {
    std::mt19937_64 random(test_seed(1));
    for (const bool behind : {false, true}) {
        WriteBehind writes(behind);
        for (int round = 0; round < 5; ++round) {
            MemoryFile file;
            Bytes wanted;
            AlignedBytes bytes;
            for (int part = 0; part < 9; ++part) {
                const std::size_t size = random() % (part % 2 == 0 ? 100 : std::size_t{3} << 20);
                std::byte* const to = bytes.reserve(size);
                std::generate_n(to, size, [&] { return static_cast<std::byte>(random()); });
                const std::size_t at = wanted.size();
                wanted.insert(wanted.end(), to, to + size);
                ASSERT_TRUE(writes.put(file, at, bytes, size).ok());
            }
            ASSERT_TRUE(writes.wait().ok());
            ASSERT_EQ(file.content_, wanted);
            const auto own = std::this_thread::get_id();
            const bool other =
                std::any_of(file.threads_.begin(), file.threads_.end(), [&](auto id) { return id != own; });
            EXPECT_EQ(other, behind);
        }
    }
}

TEST(WriteBehind, TellsAnErrorOnceAndWritesNothingBehindIt) {
    constexpr std::size_t kSize = std::size_t{1} << 20;
    for (const bool behind : {false, true}) {
        WriteBehind writes(behind);
        MemoryFile file(2);
        AlignedBytes bytes;
        std::vector<Error> told;
        for (std::size_t part = 0; part < 3 && told.empty(); ++part) {
            bytes.reserve(kSize);
            if (auto put = writes.put(file, part * kSize, bytes, kSize); !put)
                told.push_back(std::move(put).error());
        }
        ASSERT_EQ(told.size(), 1U);
        EXPECT_EQ(told.front().message, "write 2");
        EXPECT_EQ(told.front().code, ErrorCode::no_space);
        EXPECT_EQ(file.writes_, 2U);
        EXPECT_TRUE(writes.wait().ok());
    }
}

}  // namespace
}  // namespace twinrun
