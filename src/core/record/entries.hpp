// Runs as bytes, a way for each method (spec/record.md, "Entries").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/codec.hpp"
#include "base/result.hpp"
#include "record/delta.hpp"

namespace twinrun {

// runs: as the method's deduplication made them. chunks: of the image.
void encode_entries(RecordMethod method, std::uint32_t ordinal, std::uint64_t chunks,
                    std::span<const Run> runs, Encoder& encoder);
// Errors: damaged: anything but ascending disjoint runs within the image whose payload adds up to
// payload_chunks, with sources that are there before them.
Result<std::vector<Run>> decode_entries(RecordMethod method, std::uint32_t ordinal, std::uint64_t chunks,
                                        std::uint64_t payload_chunks, std::span<const std::byte> bytes);

// Whether encode_entries() puts the copies of `list` and `tree` in groups, which version 3 of the
// format has: an ordinal for each group in place of one for each copy, where that is smaller.
bool entries_grouped(RecordMethod method, std::uint32_t ordinal, std::span<const Run> runs);
// Whether these entries are such.
bool says_grouped(RecordMethod method, std::span<const std::byte> entries);

// Runs of copies alone, as columns of variable-length integers: what `runs` and the bases of
// payload are kept as. Sources that start at `own` and go on in steps of their counts are implied.
void encode_runs(std::uint32_t ordinal, std::span<const Run> runs, bool with_payload, Encoder& encoder);
Result<std::vector<Run>> decode_runs(std::uint32_t ordinal, std::uint64_t chunks,
                                     std::uint64_t payload_chunks, bool with_payload,
                                     std::span<const std::byte> bytes);

}  // namespace twinrun
