#include "capture/layout.hpp"

#include <gtest/gtest.h>

#include <random>

#include "source/tuning.hpp"

namespace twinrun {
namespace {

CapturedField field_of(std::size_t number, DType dtype, std::uint64_t items, bool on_device = false) {
    CapturedField field;
    field.name = "f" + std::to_string(number);
    field.dtype = dtype;
    field.shape = {items};
    if (on_device) field.device.emplace();
    return field;
}

// What every layout must be: pieces cover the file once, segments each field's slices once, in order and within limits.
void check(const std::vector<CapturedField>& fields, const HistorySettings& settings,
           std::uint64_t piece_bytes) {
    const auto made = StepLayout::make(fields, settings, piece_bytes);
    ASSERT_TRUE(made) << made.error().message;
    const StepLayout& layout = **made;
    ASSERT_EQ(layout.fields.size(), fields.size());
    std::vector<std::uint64_t> next_slice(fields.size());
    std::vector<std::uint64_t> next_item(fields.size());
    std::vector<std::uint64_t> next_begin(fields.size(), UINT64_MAX);  // in the file
    std::uint64_t end = 0;
    std::uint64_t last_field_end = 0;
    for (const Piece& piece : layout.pieces) {
        EXPECT_EQ(piece.offset, end);
        end = piece.offset + piece.bytes;
        // A single slice may be longer; padding comes behind.
        EXPECT_LE(piece.bytes, std::max<std::uint64_t>(piece_bytes, kSliceBytes) + kPageBytes);
        ASSERT_FALSE(piece.segments.empty());
        std::uint64_t used = 0;
        std::uint64_t residues = 0;
        for (const Segment& segment : piece.segments) {
            const FieldMetadata& field = layout.fields[segment.field];
            const std::uint64_t item = item_bytes(field.dtype);
            const FieldSlices slices(field);
            EXPECT_EQ(layout.on_device[segment.field], piece.on_device);
            EXPECT_GE(segment.offset, used);
            used = segment.offset + segment.items * item;
            EXPECT_LE(used, piece.bytes);
            EXPECT_EQ(segment.first_slice, next_slice[segment.field]);
            EXPECT_EQ(segment.first_item, next_item[segment.field]);
            EXPECT_EQ(segment.residue_offset, residues);
            EXPECT_GE(segment.slices, 1U);
            std::uint64_t items = 0;
            std::uint64_t bytes = 0;
            for (std::uint64_t s = segment.first_slice; s < segment.first_slice + segment.slices; ++s) {
                items += slices.items(s);
                bytes += slices.residue_bytes(s);
            }
            EXPECT_EQ(segment.items, items);
            EXPECT_EQ(segment.residue_bytes, bytes);
            // As MetadataWriter takes them: pages, but for the last part of a section.
            EXPECT_EQ(slices.residue_offset(segment.first_slice) % (bytes == 0 ? 1 : kPageBytes), 0U);
            residues += bytes;
            next_slice[segment.field] += segment.slices;
            next_item[segment.field] += items;
            const std::uint64_t at = piece.offset + segment.offset;
            if (next_begin[segment.field] == UINT64_MAX) {
                EXPECT_EQ(at % (field.data_bytes() >= kPageBytes ? kPageBytes : 64), 0U);
                EXPECT_GE(at, last_field_end);
                if (settings.keep_data) {
                    ASSERT_EQ(field.extents.size(), 1U);
                    EXPECT_EQ(field.extents[0].offset, at);
                }
            } else {
                EXPECT_EQ(at, next_begin[segment.field]);
            }
            next_begin[segment.field] = at + segment.items * item;
            last_field_end = next_begin[segment.field];
        }
        EXPECT_EQ(piece.residue_bytes, residues);
    }
    std::uint64_t bytes = 0;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        EXPECT_EQ(next_item[f], layout.fields[f].items());
        EXPECT_EQ(next_slice[f], FieldSlices(layout.fields[f]).slices());
        EXPECT_EQ(layout.fields[f].extents.empty(), !settings.keep_data || layout.fields[f].items() == 0);
        bytes += layout.fields[f].data_bytes();
    }
    EXPECT_EQ(layout.array_bytes, bytes);
    EXPECT_EQ(end % kPageBytes, 0U);
    EXPECT_EQ(layout.file_bytes, settings.keep_data ? end : 0);
}

TEST(StepLayout, PiecesCoverTheFileOnce) {
    constexpr std::array types{DType::f32, DType::f64,  DType::u8, DType::i16,
                               DType::c64, DType::c128, DType::i64};
    for (unsigned seed = 0; seed < 300; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 random(seed);
        std::vector<CapturedField> fields;
        const std::size_t n = 1 + random() % (seed % 10 == 0 ? 400 : 12);
        for (std::size_t f = 0; f < n; ++f) {
            const std::uint64_t most = random() % 8 == 0 ? 3'000'000 : random() % 3 == 0 ? 40'000 : 300;
            const std::uint64_t items = random() % 7 == 0 ? 0 : random() % most;
            fields.push_back(field_of(f, types[random() % types.size()], items, random() % 3 == 0));
        }
        HistorySettings settings;
        settings.keep_data = random() % 2 == 0;
        settings.residue_bits = std::array{0U, 2U, 4U}[random() % 3];
        settings.chunk_bytes = 4096U << random() % 9;
        check(fields, settings, std::array{1ULL << 20, 4ULL << 20, (1ULL << 20) + 4096}[random() % 3]);
        if (HasFatalFailure() || ::testing::Test::HasFailure()) break;
    }
}

TEST(StepLayout, HugeNumbers) {
    check({field_of(0, DType::c128, 1ULL << 36), field_of(1, DType::u8, 1)}, {}, 4 << 20);
    EXPECT_FALSE(StepLayout::make({field_of(0, DType::f64, UINT64_MAX / 2)}, {}, 4 << 20));
    EXPECT_FALSE(StepLayout::make({field_of(0, DType::f64, 1), field_of(0, DType::f64, 1)}, {}, 4 << 20));
    EXPECT_FALSE(StepLayout::make({}, {}, 4 << 20));
    check({field_of(0, DType::f32, 0)}, {}, 4 << 20);
}

// The sections of small fields rest in memory until the file is written.
TEST(StepLayout, ChargesWhatTheWriterOfItsMetadataHolds) {
    std::vector<CapturedField> fields;
    for (std::size_t f = 0; f < 1000; ++f)
        fields.push_back(field_of(f, DType::f32, 5000));
    HistorySettings settings;
    settings.tolerance.atol = 1e-3;
    const auto with = StepLayout::make(fields, settings, 4 << 20);
    settings.residue_bits = 0;
    const auto without = StepLayout::make(fields, settings, 4 << 20);
    ASSERT_TRUE(with && without);
    const std::uint64_t residues = 1000 * residue_bytes(5000, 4);
    EXPECT_GE((*with)->digest_bytes, (*without)->digest_bytes + residues);
    EXPECT_GE(writer_bytes((*with)->fields), residues);
}

}  // namespace
}  // namespace twinrun
