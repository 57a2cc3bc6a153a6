#include "engine/listed_fields.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

ListedField named(std::string_view name, std::vector<std::uint64_t> shape = {3}) {
    ListedField field;
    field.text = name;
    field.shape = std::move(shape);
    return field;
}

auto match(const std::vector<ListedField>& a, const std::vector<ListedField>& b, bool in_order = false) {
    return matched(std::span<const ListedField>(a), std::span<const ListedField>(b), in_order);
}

TEST(ListedFields, ThoseOfOneNameBelongTogether) {
    std::mt19937_64 random(test_seed(71));
    std::vector<std::string> names;
    for (int at = 0; at < 500; ++at)
        names.push_back("field " + std::to_string(at));
    std::vector<ListedField> a;
    for (std::size_t at = 0; at < names.size(); ++at)
        a.push_back(named(names[at], {at}));
    std::vector<ListedField> b = a;
    std::shuffle(b.begin(), b.end(), random);
    const auto found = match(a, b);
    ASSERT_TRUE(found);
    ASSERT_EQ(found->size(), a.size());
    for (std::size_t at = 0; at < a.size(); ++at)
        EXPECT_EQ(b[(*found)[at]].text, a[at].text);
    // Every field of b belongs to one of a.
    std::vector<std::size_t> sorted = *found;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());

    b.pop_back();
    EXPECT_FALSE(match(a, b));  // one is missing
    b.push_back(named("another", {7}));
    EXPECT_FALSE(match(a, b));  // another is there in its place
}

TEST(ListedFields, InOrderThePlaceCounts) {
    constexpr std::string_view x = "x";
    constexpr std::string_view y = "y";
    const std::vector<ListedField> twice{named(x), named(x), named(y)};
    EXPECT_EQ(match(twice, twice, true), (std::vector<std::size_t>{0, 1, 2}));
    EXPECT_FALSE(match(twice, {named(x), named(y), named(x)}, true));
    EXPECT_EQ(match({}, {}, true), std::vector<std::size_t>());
}

TEST(ListedFields, OnlyFieldsThatAreAlikeBelongTogether) {
    const ListedField field = named("x", {4, 5});
    FieldMetadata metadata;
    metadata.global_shape = {8, 5};
    metadata.global_offset = {4, 0};
    ListedField with = field;
    with.metadata = &metadata;
    EXPECT_TRUE(are_alike(field, field));
    EXPECT_TRUE(are_alike(with, with));

    ListedField other = field;
    other.dtype = DType::f64;
    EXPECT_FALSE(are_alike(field, other));
    other = field;
    other.shape = {5, 4};
    EXPECT_FALSE(are_alike(field, other));
    other = field;
    other.fortran_order = true;
    EXPECT_FALSE(are_alike(field, other));
    other = field;
    other.in_file = true;
    EXPECT_FALSE(are_alike(field, other));
    EXPECT_FALSE(are_alike(field, with));
    EXPECT_FALSE(are_alike(with, field));
    FieldMetadata elsewhere = metadata;  // another part of the same array
    elsewhere.global_offset = {0, 0};
    ListedField part = field;
    part.metadata = &elsewhere;
    EXPECT_FALSE(are_alike(with, part));
    elsewhere = metadata;
    elsewhere.global_shape = {9, 5};
    EXPECT_FALSE(are_alike(with, part));
    EXPECT_FALSE(match({with}, {part}));
}

Directory directory_of(const std::vector<std::string>& names) {
    Directory directory;
    for (const std::string& name : names) {
        FieldMetadata field;
        field.name = name;
        field.shape = {2, 3};
        field.extents = {{0, 0, 4, 6}};
        directory.fields.push_back(std::move(field));
    }
    return directory;
}

TEST(FieldsOfMetadata, AreThoseOfItsDirectory) {
    Directory directory = directory_of({"x", "y"});
    directory.fields[1].order = ArrayOrder::column_major;
    directory.fields[1].dtype = DType::c64;
    const auto fields = fields_of(directory, true);
    ASSERT_TRUE(fields);
    ASSERT_EQ(fields->size(), 2U);
    EXPECT_EQ((*fields)[0].text, "x");
    EXPECT_EQ((*fields)[1].items, 6U);
    EXPECT_EQ((*fields)[1].number, 1U);
    EXPECT_EQ((*fields)[1].dtype, DType::c64);
    EXPECT_TRUE((*fields)[1].fortran_order);
    EXPECT_EQ((*fields)[1].metadata, &directory.fields[1]);
}

TEST(FieldsOfMetadata, ThatMustBeLookedAtAreNoList) {
    EXPECT_FALSE(fields_of(Directory{}, true));
    EXPECT_FALSE(fields_of(directory_of({"x", "x@mask"}), true));
    Directory directory = directory_of({"x", "y"});
    directory.fields[1].key = "id";
    EXPECT_FALSE(fields_of(directory, true));
    directory = directory_of({"x", "y"});
    directory.fields[0].extents.clear();  // a reader decodes its elements
    EXPECT_FALSE(fields_of(directory, true));
    EXPECT_TRUE(fields_of(directory, false));
    directory.fields[0].shape = {0, 3};
    EXPECT_TRUE(fields_of(directory, true));
}

using Files = std::vector<std::optional<PlainFile>>;

PlainFile file_of(const std::vector<std::string>& names) {
    PlainFile file;
    for (const std::string& name : names) {
        PlainArray array;
        array.name = name;
        array.dtype = DType::f64;
        array.shape = {5};
        array.items = 5;
        array.offset = 40 + 100 * file.arrays.size();
        file.arrays.push_back(std::move(array));
    }
    return file;
}

TEST(FieldsOfFilesAsTheyLie, HaveTheirPlaceInTheFile) {
    PlainFile with_texts = file_of({"b", "c"});
    with_texts.has_texts = true;
    with_texts.texts = {{"format", "pt"}};
    with_texts.arrays[1].items = 0;
    with_texts.arrays[1].shape = {0};
    Files files{file_of({""}), with_texts};
    const std::vector<std::string> names{"a", "second."};
    auto made = fields_of(std::move(files), names, true);
    ASSERT_TRUE(made);
    const FieldsOfFiles found = std::move(*made);  // names stay where they are
    ASSERT_EQ(found.fields.size(), 3U);
    EXPECT_EQ(found.fields[0].text, "a");
    EXPECT_EQ(found.fields[1].text, "second.b");
    EXPECT_TRUE(found.fields[1].in_file);
    ASSERT_EQ(found.fields[1].extents.size(), 1U);
    EXPECT_EQ(found.fields[1].extents[0].file, 1U);
    EXPECT_EQ(found.fields[1].extents[0].offset, 40U);
    EXPECT_EQ(found.fields[1].extents[0].stride, 8U);
    EXPECT_EQ(found.fields[1].extents[0].count, 5U);
    EXPECT_TRUE(found.fields[2].extents.empty());
    ASSERT_EQ(found.texts.size(), 2U);
    EXPECT_FALSE(found.texts[0].there);
    EXPECT_TRUE(found.texts[1].there);
    EXPECT_EQ(found.texts[1].texts, with_texts.texts);
}

TEST(FieldsOfFilesAsTheyLie, ThatMustBeLookedAtAreNoList) {
    const std::vector<std::string> two{"x", "x"};
    const auto made = [&](const std::optional<PlainFile>& first, const std::optional<PlainFile>& second,
                          bool unique) {
        return fields_of(Files{first, second}, two, unique).has_value();
    };
    EXPECT_TRUE(made(file_of({"1"}), file_of({"2"}), true));
    EXPECT_FALSE(made(file_of({""}), file_of({""}), true));  // one name twice
    EXPECT_TRUE(made(file_of({""}), file_of({""}), false));
    EXPECT_FALSE(made(std::nullopt, file_of({"2"}), true));  // not plain
    EXPECT_FALSE(made(file_of({}), file_of({"2"}), true));
    EXPECT_FALSE(made(file_of({"@text"}), file_of({"2"}), true));
    const std::vector<std::string> empty{""};
    EXPECT_FALSE(fields_of(Files{file_of({""})}, empty, true));
    EXPECT_FALSE(fields_of(Files{}, {}, true));
}

TEST(ListSources, AFieldHasTheSourceOfWhereItLies) {
    const std::array<float, 3> values{1, 2, 3};
    ListSources sources(4, CacheUse::automatic);
    ListedField in_memory = named("m");
    in_memory.data = values.data();
    in_memory.items = values.size();
    const FieldSide memory = sources.side({}, in_memory);
    ASSERT_NE(memory.elements, nullptr);
    EXPECT_TRUE(memory.elements->in_memory());
    EXPECT_EQ(memory.metadata, nullptr);
    EXPECT_EQ(static_cast<const void*>(memory.elements->view(0, 3, nullptr).base), values.data());

    ListedField in_file = named("f");
    in_file.items = 3;
    in_file.in_file = true;
    in_file.extents = {{0, 0, 4, 3}};
    const std::vector<std::string> paths{"nowhere"};
    const FieldSide file = sources.side({nullptr, true, paths}, in_file);
    ASSERT_NE(file.elements, nullptr);
    EXPECT_TRUE(file.elements->in_files());
    EXPECT_EQ(file.metadata, nullptr);

    ListedField on_device = named("d");
    on_device.items = 3;
    on_device.device = 1;
    on_device.data = values.data();
    const FieldSide device = sources.side({}, on_device);
    ASSERT_NE(device.elements, nullptr);
    ASSERT_NE(device.elements->device_array(), nullptr);
    EXPECT_EQ(device.elements->device_array()->device, 1);
}

TEST(ListSources, WithoutDataOnlyMetadataAnswers) {
    FieldMetadata metadata;
    ListedField field = named("x");
    field.items = 3;
    field.metadata = &metadata;
    field.number = 2;
    ListSources sources(2, CacheUse::automatic);
    const FieldSide without = sources.side({nullptr, false, {}}, field);
    EXPECT_EQ(without.elements, nullptr);
    EXPECT_EQ(without.field, 2U);
    field.items = 0;  // all its elements are there
    EXPECT_NE(sources.side({nullptr, false, {}}, field).elements, nullptr);
    field.items = 3;
    EXPECT_NE(sources.side({nullptr, true, {}}, field).elements, nullptr);
}

}  // namespace
}  // namespace twinrun
