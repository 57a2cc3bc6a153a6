#include "capture/protected_fields.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace twinrun {
namespace {

std::array<double, 8> field_values{};

CapturedField field(const std::string& name, std::uint64_t items = 8) {
    CapturedField made;
    made.name = name;
    made.dtype = DType::f64;
    made.shape = {items};
    made.data = field_values.data();
    return made;
}

// Names and sizes of the fields, in order.
std::string listed(const ProtectedFields& fields, const std::vector<std::string>& names = {}) {
    const auto found = fields.named(names);
    if (!found) return "error: " + found.error().message;
    std::string text;
    for (const CapturedField& one : *found)
        text += one.name + std::to_string(one.shape[0]) + " ";
    return text;
}

TEST(ProtectedFields, AreCapturedInTheirOrder) {
    ProtectedFields fields;
    for (const char* const name : {"c", "a", "b"})
        ASSERT_TRUE(fields.add(field(name), {}));
    EXPECT_EQ(listed(fields), "c8 a8 b8 ");
    EXPECT_EQ(listed(fields, {"b", "c"}), "b8 c8 ");
}

TEST(ProtectedFields, AReplacedFieldKeepsItsPlace) {
    ProtectedFields fields;
    ASSERT_TRUE(fields.add(field("a"), {}));
    ASSERT_TRUE(fields.add(field("b"), {}));
    ASSERT_TRUE(fields.add(field("a", 3), {}));
    EXPECT_EQ(listed(fields), "a3 b8 ");
}

TEST(ProtectedFields, ARemovedFieldIsNotFound) {
    ProtectedFields fields;
    ASSERT_TRUE(fields.add(field("a"), {}));
    ASSERT_TRUE(fields.add(field("b"), {}));
    ASSERT_TRUE(fields.remove("a"));
    EXPECT_EQ(listed(fields), "b8 ");
    EXPECT_EQ(listed(fields, {"b", "a"}), "error: no protected field of the name 'a'");
    EXPECT_EQ(fields.remove("a").error().code, ErrorCode::not_found);
    ASSERT_TRUE(fields.add(field("a"), {}));
    EXPECT_EQ(listed(fields), "b8 a8 ");
}

// What cannot be captured replaces nothing.
TEST(ProtectedFields, ABadFieldIsRefused) {
    ProtectedFields fields;
    ASSERT_TRUE(fields.add(field("a"), {}));
    EXPECT_EQ(fields.add(field("\xff"), {}).error().code, ErrorCode::invalid_argument);
    CapturedField with_strides = field("a", 3);
    with_strides.strides = {8, 8};
    EXPECT_EQ(fields.add(with_strides, {}).error().message,
              "field 'a': strides must be as many as dimensions");
    EXPECT_EQ(listed(fields), "a8 ");
}

}  // namespace
}  // namespace twinrun
