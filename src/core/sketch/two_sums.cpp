#include "sketch/two_sums.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace twinrun {

namespace {

Result<std::vector<std::uint64_t>> words(MetadataFile& file, std::size_t field, Section section,
                                         std::uint64_t offset, std::uint64_t count) {
    std::vector<std::uint64_t> read(count);
    TWR_CHECK(file.read(field, section, offset, std::as_writable_bytes(std::span(read))));
    if constexpr (std::endian::native == std::endian::big) {
        for (std::uint64_t& word : read)
            word = __builtin_bswap64(word);
    }
    return read;
}

unsigned highest(std::span<const SumsOfPart> parts) {
    unsigned height = 0;
    for (const SumsOfPart& part : parts)
        height = std::max(height, part.height);
    return height;
}

bool all_set(const std::vector<std::uint8_t>& flags) {
    return std::ranges::all_of(flags, [](std::uint8_t flag) { return flag != 0; });
}

}  // namespace

Result<BucketSums> read_sums(MetadataFile& file, std::size_t field, bool whole) {
    const FieldMetadata& own = file.directory().fields[field];
    if (!whole) {
        TWR_TRY(std::vector<PartialSum> sums, file.sums(field));
        return BucketSums{std::move(sums), own.sums.height};
    }
    if (own.settings.kind != DigestKind::linear)
        return Error{ErrorCode::unsupported, "published digests do not add up"};
    const TreeLayout tree = own.tree();
    TWR_TRY(const auto coarse,
            words(file, field, Section::tree, own.chunks() == 0 ? 0 : tree.first(0) * 8, own.chunks()));
    TWR_TRY(const auto fine, words(file, field, Section::fine, 0, own.section_bytes(Section::fine) / 8));
    return BucketSums{sums_of_whole(coarse, fine, own.scalars(), own.chunking()), 0};
}

TwoSums::TwoSums(const FieldMetadata& field, const Tolerance& wanted, std::span<const SumsOfPart> of_a,
                 std::span<const SumsOfPart> of_b)
    : wanted_(wanted),
      proof_(field, wanted),
      shape_(field.chunking()),
      bits_(field.settings.rule.residue_bits),
      height_(std::max(highest(of_a), highest(of_b))) {
    const std::array added = {add_sums(of_a, height_, shape_.blocks_per_chunk),
                              add_sums(of_b, height_, shape_.blocks_per_chunk)};
    for (const auto& sums : added) {
        for (const PartialSum& sum : sums)
            buckets_.push_back(sum.bucket);
    }
    std::ranges::sort(buckets_);
    buckets_.erase(std::unique(buckets_.begin(), buckets_.end()), buckets_.end());
    for (std::size_t side = 0; side < added.size(); ++side) {
        coarse_[side].resize(buckets_.size());
        fine_[side].resize(buckets_.size());
        held_[side].resize(buckets_.size());
        std::size_t at = 0;
        for (const PartialSum& sum : added[side]) {
            while (buckets_[at] != sum.bucket)
                ++at;
            coarse_[side][at] = sum.coarse;
            fine_[side][at] = sum.fine;
            held_[side][at] = 1;
        }
    }
    open_.resize(buckets_.size());
    for (std::size_t at = 0; at < open_.size(); ++at)
        open_[at] = !proof_.by_tree() || coarse_[0][at] != coarse_[1][at];
    count_ = buckets_.size();
}

std::uint64_t TwoSums::count_open() const {
    return static_cast<std::uint64_t>(std::ranges::count(open_, std::uint8_t{1}));
}

std::vector<Range> TwoSums::open_scalars(std::uint64_t scalars) const {
    std::vector<Range> ranges;
    for (std::size_t at = 0; at < open_.size(); ++at) {
        const std::uint64_t begin = buckets_[at] * bucket_scalars();
        if (open_[at] == 0 || begin >= scalars) continue;
        const std::uint64_t end = std::min(begin + bucket_scalars(), scalars);
        if (!ranges.empty() && ranges.back().end == begin) {
            ranges.back().end = end;
        } else {
            ranges.push_back({begin, end});
        }
    }
    return ranges;
}

void TwoSums::keep(std::span<const Range> scalars) {
    std::vector<std::uint8_t> kept(buckets_.size());
    const auto position = [&](std::uint64_t bucket) {
        return std::ranges::lower_bound(buckets_, bucket) - buckets_.begin();
    };
    for (const Range& range : scalars) {
        if (range.begin >= range.end) continue;
        std::fill(kept.begin() + position(range.begin / bucket_scalars()),
                  kept.begin() + position((range.end - 1) / bucket_scalars() + 1), std::uint8_t{1});
    }
    for (std::size_t at = 0; at < open_.size(); ++at)
        open_[at] = open_[at] & kept[at];
    count_ = static_cast<std::uint64_t>(std::ranges::count(kept, std::uint8_t{1}));
}

std::optional<std::vector<std::uint64_t>> TwoSums::at(std::span<const std::uint64_t> wanted) const {
    std::vector<std::uint64_t> found;
    found.reserve(wanted.size());
    std::size_t at = 0;  // rows most often come in the order of their buckets
    for (const std::uint64_t bucket : wanted) {
        if (at >= buckets_.size() || buckets_[at] != bucket)
            at = static_cast<std::size_t>(std::ranges::lower_bound(buckets_, bucket) - buckets_.begin());
        if (at >= buckets_.size() || buckets_[at] != bucket || held_[0][at] == 0 || held_[1][at] == 0)
            return std::nullopt;
        found.push_back(at);
    }
    return found;
}

bool TwoSums::settle(std::span<const std::uint64_t> starts, std::uint64_t row_scalars,
                     std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
    const std::vector<BucketResidues> residues =
        compare_residues(starts, row_scalars, a, b, bits_, shape_, height_);
    std::vector<std::uint64_t> numbers;
    numbers.reserve(residues.size());
    for (const BucketResidues& one : residues)
        numbers.push_back(one.bucket);
    const auto positions = at(numbers);
    if (!positions) return false;
    for (std::size_t i = 0; i < residues.size(); ++i) {
        const std::size_t position = (*positions)[i];
        if (open_[position] == 0 || !says(residues[i], position).proven) continue;
        open_[position] = 0;
        std::ranges::transform(by_cells_, residues[i].counts, by_cells_.begin(), std::plus());
    }
    return true;
}

bool TwoSums::held_by_both() const { return all_set(held_[0]) && all_set(held_[1]); }

bool TwoSums::identical() const { return held_by_both() && coarse_[0] == coarse_[1] && fine_[0] == fine_[1]; }

bool TwoSums::is_sum_of(std::span<const SumsOfPart> parts) const {
    if (highest(parts) > height_) return false;
    const std::vector<PartialSum> sums = add_sums(parts, height_, shape_.blocks_per_chunk);
    if (sums.size() != buckets_.size()) return false;
    for (std::size_t at = 0; at < sums.size(); ++at) {
        if (sums[at].bucket != buckets_[at] || sums[at].fine != fine_[0][at]) return false;
    }
    return true;
}

ProvenDrift TwoSums::proven(std::uint64_t by_tree) const {
    ProvenDrift drift = proof_.drift();
    drift.by_tree = by_tree;
    drift.by_cells = by_cells_;
    return drift;
}

}  // namespace twinrun
