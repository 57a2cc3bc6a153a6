// Ranks that take turns: what rank 0 said is the answer to the others, and who says something else has failed.
#include "platform/turns.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace twinrun {
namespace {

using Values = std::vector<std::int64_t>;

Result<> minimum(Comm& comm, Values values, const Values& answer) {
    auto done = comm.minimum(values);
    if (done) {
        EXPECT_EQ(values, answer);
    }
    return done;
}

Result<> broadcast(Comm& comm, std::byte given, std::byte& found) {
    std::array<std::byte, 2> bytes{given, given};
    auto done = comm.broadcast(bytes);
    found = bytes[1];
    return done;
}

TEST(Turns, LaterRanksHearWhatRank0Said) {
    const auto turns = std::make_shared<Turns>();
    for (int rank = 0; rank < 3; ++rank) {
        TurnComm comm(turns, rank, 3);
        EXPECT_EQ(comm.rank(), rank);
        EXPECT_EQ(comm.size(), 3);
        ASSERT_TRUE(minimum(comm, {1, -7 - rank}, {1, -7}));
        std::byte found{};
        ASSERT_TRUE(broadcast(comm, static_cast<std::byte>(rank + 5), found));
        EXPECT_EQ(found, std::byte{5});
        ASSERT_TRUE(minimum(comm, {4 + rank}, {4}));
    }
}

TEST(Turns, AnotherCountIsAnError) {
    const auto turns = std::make_shared<Turns>();
    TurnComm first(turns, 0, 2);
    ASSERT_TRUE(minimum(first, {1, 2}, {1, 2}));
    for (const Values& other : {Values{1}, Values{1, 2, 2}, Values{}}) {
        TurnComm second(turns, 1, 2);
        const auto done = minimum(second, other, {});
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().code, ErrorCode::mismatch);
        EXPECT_NE(done.error().message.find("rank 1"), std::string::npos);
    }
}

TEST(Turns, AnotherCallIsAnError) {
    const auto turns = std::make_shared<Turns>();
    TurnComm first(turns, 0, 2);
    ASSERT_TRUE(minimum(first, {1}, {1}));
    std::byte found{};
    TurnComm second(turns, 1, 2);
    EXPECT_FALSE(broadcast(second, std::byte{1}, found));
    TurnComm third(turns, 1, 2);
    ASSERT_TRUE(minimum(third, {1}, {1}));
    EXPECT_FALSE(minimum(third, {1}, {1}));  // rank 0 made one call
}

}  // namespace
}  // namespace twinrun
