#include "digest/sums.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <type_traits>

#include "base/checked.hpp"
#include "digest/coefficients.hpp"
#include "digest/field61.hpp"
#include "digest/values.hpp"
#include "platform/float_environment.hpp"

namespace twinrun {

namespace {

// Sums take one byte for this many bytes of data.
constexpr std::uint64_t kSumsShare = 64;
constexpr std::uint64_t kHalf = (1ULL << 32) - 1;

unsigned largest_height(std::uint32_t chunk_bytes) {
    return static_cast<unsigned>(std::countr_zero(kLargestChunk) - std::countr_zero(chunk_bytes));
}

// RHO^k for the blocks of a bucket.
std::vector<std::uint64_t> powers_of_rho(std::uint64_t blocks) {
    std::vector<std::uint64_t> powers(blocks);
    std::uint64_t power = 1;
    for (auto& p : powers) {
        p = power;
        power = multiply61(power, kRho);
    }
    return powers;
}

// Of ascending numbers with repetitions.
void keep_unique(std::vector<std::uint64_t>& numbers) {
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

std::uint64_t whole_sum(std::uint64_t low, std::uint64_t high) {
    // high < 2^61 halves: high * 2^32 needs 93 bits.
    return reduce61_wide((static_cast<unsigned __int128>(high) << 32) + low);
}

}  // namespace

std::uint64_t id_stride(std::uint64_t row_scalars) { return std::bit_ceil(row_scalars); }

std::optional<RowPlacement> RowPlacement::of_box(std::span<const std::uint64_t> shape,
                                                 std::span<const std::uint64_t> global_shape,
                                                 std::span<const std::uint64_t> global_offset,
                                                 std::uint64_t scalars_per_item) {
    const auto all = checked_product(global_shape);
    if (!all || *all > kIndexLimit / scalars_per_item) return std::nullopt;
    RowPlacement p;
    // The innermost axis that is cut, and all behind it, make a row.
    std::size_t axis = shape.empty() ? 0 : shape.size() - 1;
    while (axis > 0 && shape[axis] == global_shape[axis])
        --axis;
    p.rows_ = 1;
    p.row_scalars_ = scalars_per_item;
    std::uint64_t stride = scalars_per_item;
    for (std::size_t d = shape.size(); d-- > 0;) {
        p.base_ += global_offset[d] * stride;
        if (d >= axis) {
            p.row_scalars_ *= shape[d];
        } else {
            p.rows_ *= shape[d];
            p.axes_.push_back({shape[d], stride});
        }
        stride *= global_shape[d];
    }
    if (p.row_scalars_ == 0) p.rows_ = 0;
    return p;
}

std::optional<RowPlacement> RowPlacement::of_ids(std::vector<std::uint64_t> ids, std::uint64_t row_scalars) {
    return of_ids(std::make_shared<const std::vector<std::uint64_t>>(std::move(ids)), row_scalars);
}

std::optional<RowPlacement> RowPlacement::of_ids(std::shared_ptr<const std::vector<std::uint64_t>> ids,
                                                 std::uint64_t row_scalars) {
    RowPlacement p;
    p.by_id_ = true;
    p.rows_ = row_scalars == 0 ? 0 : ids->size();
    p.row_scalars_ = row_scalars;
    if (row_scalars > kLargestChunk) return std::nullopt;
    p.id_stride_ = twinrun::id_stride(std::max<std::uint64_t>(row_scalars, 1));
    for (const std::uint64_t id : *ids) {
        if (id >= kIndexLimit / p.id_stride_) return std::nullopt;
    }
    p.ids_ = std::move(ids);
    return p;
}

std::uint64_t RowPlacement::start(std::uint64_t row) const {
    if (by_id_) return (*ids_)[row] * id_stride_;
    std::uint64_t at = base_;
    for (const Axis& axis : axes_) {
        at += row % axis.extent * axis.stride;
        row /= axis.extent;
    }
    return at;
}

RowPlacement::Walk::Walk(const RowPlacement& rows, std::uint64_t row)
    : rows_(rows), row_(row), start_(row < rows.rows() ? rows.start(row) : 0) {
    if (rows.rows() == 0) return;
    for (const Axis& axis : rows.axes_) {
        index_.push_back(row % axis.extent);
        row /= axis.extent;
    }
}

void RowPlacement::Walk::next() {
    ++row_;
    if (rows_.by_id_) {
        start_ = row_ < rows_.rows_ ? (*rows_.ids_)[row_] * rows_.id_stride_ : 0;
        return;
    }
    for (std::size_t d = 0; d < index_.size(); ++d) {
        start_ += rows_.axes_[d].stride;
        if (++index_[d] < rows_.axes_[d].extent) return;
        start_ -= rows_.axes_[d].extent * rows_.axes_[d].stride;
        index_[d] = 0;
    }
}

PartialSums::PartialSums(const DigestSettings& settings, DType scalar,
                         std::shared_ptr<const RowPlacement> placement)
    : settings_(settings),
      scalar_(scalar),
      shape_(chunk_shape(scalar, settings.chunk_bytes, settings.rule.residue_bits)),
      placement_(std::move(placement)) {
    settings_.rule.residue_bits = 0;  // no residues are made here
    settings_.chunk_bytes = kBlockBytes;
}

std::optional<PartialSums> PartialSums::plan(const DigestSettings& settings, DType scalar,
                                             std::shared_ptr<const RowPlacement> placement, bool adds) {
    if (settings.kind != DigestKind::linear) return std::nullopt;
    PartialSums sums(settings, scalar, std::move(placement));
    const RowPlacement& where = *sums.placement_;
    const std::uint64_t chunk = sums.shape_.chunk_scalars;
    // A row must lie in one bucket where rows go by ID.
    unsigned height = 0;
    const unsigned highest = largest_height(settings.chunk_bytes);
    while (where.by_id() &&
           (chunk << height) < twinrun::id_stride(std::max<std::uint64_t>(where.row_scalars(), 1))) {
        if (++height > highest) return std::nullopt;
    }
    std::vector<std::uint64_t>& buckets = sums.buckets_;
    const std::uint64_t data = where.scalars() * item_bytes(scalar);
    const std::uint64_t goal = std::max<std::uint64_t>(data, kBlockBytes) / kSumsShare;
    bool sorted = true;
    for (;; ++height) {
        buckets.clear();
        const auto bits = static_cast<unsigned>(std::countr_zero(chunk << height));
        // No more than may be worth it, unless a larger bucket could still do.
        const std::uint64_t most = (height == highest ? largest_sums_bytes(data) : goal) / kPartialSumBytes;
        bool few = true;
        RowPlacement::Walk walk(where, 0);
        for (std::uint64_t row = 0; few && row < where.rows(); ++row, walk.next()) {
            const std::uint64_t start = walk.start();
            const std::uint64_t last = (start + where.row_scalars() - 1) >> bits;
            for (std::uint64_t b = start >> bits; few && b <= last; ++b) {
                if (!buckets.empty() && buckets.back() == b) continue;
                sorted = sorted && (buckets.empty() || buckets.back() < b);
                buckets.push_back(b);
                if (sorted) few = buckets.size() <= most;
            }
        }
        if (few && !sorted) {
            std::sort(buckets.begin(), buckets.end());
            keep_unique(buckets);
            few = buckets.size() <= most;
        }
        if (few) break;
        if (height == highest) return std::nullopt;
    }
    sums.height_ = height;
    sums.block_bits_ = static_cast<unsigned>(std::countr_zero(sums.shape_.block_scalars));
    sums.bucket_bits_ = static_cast<unsigned>(std::countr_zero(chunk << height));
    if (!buckets.empty() && (buckets.back() - buckets.front()) / 4 < buckets.size()) {
        sums.slots_.resize(buckets.back() - buckets.front() + 1);
        for (std::size_t i = 0; i < buckets.size(); ++i)
            sums.slots_[buckets[i] - buckets.front()] = static_cast<std::uint32_t>(i);
    }
    sums.factors_ = powers_of_rho(sums.shape_.blocks_per_chunk << height);
    if (std::size_t{1} << sums.bucket_bits_ <= kLargestSumsTable) {
        sums.weights_.resize(std::size_t{1} << sums.bucket_bits_);
        for (std::size_t i = 0; i < sums.weights_.size(); ++i) {
            sums.weights_[i] = multiply61(coefficients().r[i & (sums.shape_.block_scalars - 1)],
                                          sums.factors_[sums.factors_.size() - 1 - (i >> sums.block_bits_)]);
        }
    }
    if (adds) sums.halves_ = std::make_unique<std::atomic<std::uint64_t>[]>(buckets.size() * 4);
    return sums;
}

std::uint64_t PartialSums::bytes() const {
    return buckets_.size() * 5 * sizeof(std::uint64_t) + factors_.size() * sizeof(std::uint64_t) +
           weights_.size() * sizeof(std::uint64_t) + slots_.size() * sizeof(std::uint32_t);
}

namespace {

constexpr std::size_t kPiece = 512;        // scalars whose values are made at a time
constexpr std::size_t kMostProducts = 16;  // of numbers of 61 bits and a sign, in 128 bits

// Values of scalars as signed numbers: cells, and tokens modulo p.
struct Values {
    alignas(64) std::array<std::int64_t, kPiece> fine;
    alignas(64) std::array<std::int64_t, kPiece> coarse;
};

std::int64_t signed_value(const Cell& cell) {
    return static_cast<std::int64_t>(cell.token ? reduce61(cell.bits) : cell.bits);
}

// As element/cell.hpp defines it, whatever the scalars are.
template <class T>
void any_values(const T* x, std::size_t n, const CellRule& rule, Values* to) {
    for (std::size_t i = 0; i < n; ++i) {
        to->fine[i] = signed_value(cell_for(x[i], rule, 0));
        to->coarse[i] =
            rule.coarse_shift == 0 ? to->fine[i] : signed_value(cell_for(x[i], rule, rule.coarse_shift));
    }
}

// Rounding is downward: adding 1.5 * 2^52 floors whatever lies below 2^51. False: a scalar has no
// cell that is that simple.
template <class T>
bool absolute_values(const T* x, std::size_t n, const CellRule& rule, Values* to) {
    if (rule.fine_exponent < -1022 || rule.fine_exponent > 1022) return false;
    const double scale = std::ldexp(1.0, -rule.fine_exponent);
    constexpr double kMagic = 0x1.8p52;
    int simple = 1;  // no branches: the loop is for vectors
    for (std::size_t i = 0; i < n; ++i) {
        const double t = static_cast<double>(x[i]) * scale;
        simple &= static_cast<int>(t > -0x1p51) & static_cast<int>(t < 0x1p51);  // no NaN is
        to->fine[i] = static_cast<std::int64_t>(bits_of(t + kMagic) - bits_of(kMagic));
        to->coarse[i] = to->fine[i] >> rule.coarse_shift;
    }
    return simple != 0;
}

// Rounding is to nearest.
template <class T>
bool relative_values(const T* x, std::size_t n, const CellRule& rule, Values* to) {
    const std::uint64_t origin = bits_of(rule.key_origin);
    constexpr auto kLimit = static_cast<std::int64_t>(kTokenLimit);
    int simple = 1;
    for (std::size_t i = 0; i < n; ++i) {
        const auto value = static_cast<double>(x[i]);
        const double sum = std::fabs(value) + rule.key_origin;
        const std::uint64_t bits = bits_of(sum);
        const auto key = static_cast<std::int64_t>(bits - origin);
        const std::int64_t q = (std::signbit(value) ? -key : key) >> rule.fine_exponent;
        simple &= (static_cast<int>(sum >= kSmallestSum) | static_cast<int>(bits == 0)) &
                  static_cast<int>(bits < 0x7FF0000000000000ULL) & static_cast<int>(q > -kLimit) &
                  static_cast<int>(q < kLimit);
        to->fine[i] = q;
        to->coarse[i] = q >> rule.coarse_shift;
    }
    return simple != 0;
}

void binary32_values(const float* x, std::size_t n, Values* to) {
    for (std::size_t i = 0; i < n; ++i)
        to->fine[i] = to->coarse[i] = binary32_bits(x[i]);
}

std::uint64_t word_bits(double x) { return binary64_bits(x); }
template <class T>
std::uint64_t word_bits(T x) {
    return static_cast<std::uint64_t>(x);
}
template <class T>
void words_values(const T* x, std::size_t n, Values* to) {
    for (std::size_t i = 0; i < n; ++i)
        to->fine[i] = to->coarse[i] = static_cast<std::int64_t>(words_value(word_bits(x[i])));
}

// (Not inlined: it must run within the floating-point environment that its caller sets.)
template <class T>
[[gnu::noinline]] void values_of(const void* scalars, std::size_t n, const CellRule& rule, Values* to) {
    const T* x = static_cast<const T*>(scalars);
    if constexpr (std::is_same_v<T, float>) {
        if (rule.kind == CellKind::binary32) return binary32_values(x, n, to);
    } else {
        if (rule.kind == CellKind::words) return words_values(x, n, to);
    }
    if constexpr (std::is_floating_point_v<T>) {
        const bool absolute = rule.kind == CellKind::absolute || rule.kind == CellKind::integers;
        if (absolute && absolute_values(x, n, rule, to)) return;
        if (rule.kind == CellKind::relative && relative_values(x, n, rule, to)) return;
    }
    any_values(x, n, rule, to);
}

void values_of(ComputeType type, const void* scalars, std::size_t n, const CellRule& rule, Values* to) {
    switch (type) {
        case ComputeType::f32: return values_of<float>(scalars, n, rule, to);
        case ComputeType::f64: return values_of<double>(scalars, n, rule, to);
        case ComputeType::i64: return values_of<std::int64_t>(scalars, n, rule, to);
        case ComputeType::u64: return values_of<std::uint64_t>(scalars, n, rule, to);
    }
}

std::uint64_t field_sum(__int128 sum) {
    const std::uint64_t size = reduce61_wide(static_cast<unsigned __int128>(sum < 0 ? -sum : sum));
    return sum < 0 ? subtract61(0, size) : size;
}

__int128 product(std::int64_t value, std::uint64_t weight) {
    return static_cast<__int128>(value) * static_cast<std::int64_t>(weight);
}

}  // namespace

// The sums that were added to one bucket since it was opened.
struct PartialSums::Accumulator {
    std::uint64_t bucket = 0;
    std::size_t slot = 0;
    bool open = false;
    std::size_t products = 0;
    __int128 coarse_products = 0;
    __int128 fine_products = 0;
    std::uint64_t coarse = 0;
    std::uint64_t fine = 0;

    void fold() {
        coarse = add61(coarse, field_sum(coarse_products));
        fine = add61(fine, field_sum(fine_products));
        coarse_products = fine_products = 0;
        products = 0;
    }
};

// Scalars of one block: n values, and the first value is scalar `index` of the whole array.
void PartialSums::add_some(const std::int64_t* fine, const std::int64_t* coarse, std::uint64_t index,
                           std::size_t n, Accumulator& to) const {
    const std::uint64_t in_bucket = index & ((1ULL << bucket_bits_) - 1);
    if (!weights_.empty()) {
        const std::uint64_t* weights = &weights_[in_bucket];
        for (std::size_t at = 0; at < n;) {
            if (to.products == kMostProducts) to.fold();
            const std::size_t end = std::min(n, at + kMostProducts - to.products);
            to.products += end - at;
            // Not in memory, as far as the compiler can tell.
            __int128 fine_products = to.fine_products;
            __int128 coarse_products = to.coarse_products;
            for (; at < end; ++at) {
                fine_products += product(fine[at], weights[at]);
                coarse_products += product(coarse[at], weights[at]);
            }
            to.fine_products = fine_products;
            to.coarse_products = coarse_products;
        }
        return;
    }
    const std::uint64_t factor = factors_[factors_.size() - 1 - (in_bucket >> block_bits_)];
    const std::uint64_t* r = coefficients().r.data() + (index & (shape_.block_scalars - 1));
    for (std::size_t at = 0; at < n; at += kMostProducts) {
        __int128 sum = 0;
        __int128 coarse_sum = 0;
        for (std::size_t i = at; i < std::min(n, at + kMostProducts); ++i) {
            sum += product(fine[i], r[i]);
            coarse_sum += product(coarse[i], r[i]);
        }
        to.fine = add61(to.fine, multiply61(field_sum(sum), factor));
        to.coarse = add61(to.coarse, multiply61(field_sum(coarse_sum), factor));
    }
}

std::size_t PartialSums::slot_of(std::uint64_t bucket) const {
    if (!slots_.empty()) return slots_[bucket - buckets_.front()];
    return static_cast<std::size_t>(std::lower_bound(buckets_.begin(), buckets_.end(), bucket) -
                                    buckets_.begin());
}

void PartialSums::flush(Accumulator& from) {
    if (!from.open) return;
    from.fold();
    std::atomic<std::uint64_t>* to = &halves_[from.slot * 4];
    to[0].fetch_add(from.coarse & kHalf, std::memory_order_relaxed);
    to[1].fetch_add(from.coarse >> 32, std::memory_order_relaxed);
    to[2].fetch_add(from.fine & kHalf, std::memory_order_relaxed);
    to[3].fetch_add(from.fine >> 32, std::memory_order_relaxed);
}

void PartialSums::add(const ElementView& view, std::uint64_t first, std::uint64_t count) {
    if (count == 0) return;
    const FloatEnvironment guard(environment_of(settings_.rule));
    Digester digester(settings_, scalar_);
    const ComputeType type = compute_type(scalar_);
    alignas(64) std::array<std::byte, kPiece * 8> staging;
    Values values;
    std::uint64_t made_from = 0;  // the scalars of the view whose values are there
    std::uint64_t made_to = 0;
    std::array<ChunkDigest, 16> whole;
    const std::uint64_t width = placement_->row_scalars();
    const std::size_t block = shape_.block_scalars;
    RowPlacement::Walk row(*placement_, first / width);
    std::uint64_t within = first % width;
    Accumulator sum;
    for (std::uint64_t done = 0; done < count; row.next(), within = 0) {
        std::uint64_t index = row.start() + within;
        std::uint64_t left = std::min(count - done, width - within);
        while (left != 0) {
            const std::uint64_t bucket = index >> bucket_bits_;
            if (!sum.open || bucket != sum.bucket) {
                flush(sum);
                sum = {};
                sum.bucket = bucket;
                sum.slot = slot_of(bucket);
                sum.open = true;
            }
            const std::uint64_t here = std::min(left, ((bucket + 1) << bucket_bits_) - index);
            const std::uint64_t position = index & (block - 1);
            std::uint64_t n = 0;
            if (position == 0 && here >= block) {
                // Whole blocks are digested as everywhere.
                const std::uint64_t blocks = std::min<std::uint64_t>(here >> block_bits_, whole.size());
                n = blocks << block_bits_;
                digester.chunks(view, done, n, whole.data(), nullptr, nullptr);
                const std::uint64_t at = (index & ((1ULL << bucket_bits_) - 1)) >> block_bits_;
                for (std::uint64_t b = 0; b < blocks; ++b) {
                    const std::uint64_t factor = factors_[factors_.size() - 1 - (at + b)];
                    sum.fine = add61(sum.fine, multiply61(whole[b].fine, factor));
                    sum.coarse = add61(sum.coarse, multiply61(whole[b].coarse, factor));
                }
            } else {
                if (done >= made_to) {
                    // Values of the rows that follow are made too, if rows are short.
                    const std::uint64_t some = std::min<std::uint64_t>(count - done, kPiece);
                    const std::uint64_t batch = width < kPiece ? some : std::min(some, here);
                    values_of(type, load(view, done, batch, staging.data()), batch, settings_.rule, &values);
                    made_from = done;
                    made_to = done + batch;
                }
                n = std::min({here, block - position, made_to - done});
                add_some(&values.fine[done - made_from], &values.coarse[done - made_from], index, n, sum);
            }
            done += n;
            index += n;
            left -= n;
        }
    }
    flush(sum);
}

std::vector<PartialSum> PartialSums::finish() const {
    std::vector<std::uint64_t> halves(buckets_.size() * 4);
    for (std::size_t i = 0; i < halves.size(); ++i)
        halves[i] = halves_[i].load(std::memory_order_relaxed);
    return finish(halves);
}

std::vector<PartialSum> PartialSums::finish(std::span<const std::uint64_t> halves) const {
    std::vector<PartialSum> sums;
    sums.reserve(buckets_.size());
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        const std::uint64_t* of = &halves[i * 4];
        sums.push_back({buckets_[i], whole_sum(of[0], of[1]), whole_sum(of[2], of[3])});
    }
    return sums;
}

std::vector<PartialSum> add_sums(std::span<const SumsOfPart> parts, unsigned height,
                                 std::size_t blocks_per_chunk) {
    std::vector<PartialSum> all;
    for (const SumsOfPart& part : parts) {
        const unsigned up = height - part.height;
        // RHO to the blocks of k buckets of this height.
        const std::uint64_t step = power61(kRho, static_cast<std::uint64_t>(blocks_per_chunk) << part.height);
        std::vector<std::uint64_t> powers(std::size_t{1} << up, 1);
        for (std::size_t k = 1; k < powers.size(); ++k)
            powers[k] = multiply61(powers[k - 1], step);
        for (const PartialSum& sum : part.sums) {
            const std::uint64_t behind = powers.size() - 1 - (sum.bucket & (powers.size() - 1));
            all.push_back({sum.bucket >> up, multiply61(sum.coarse, powers[behind]),
                           multiply61(sum.fine, powers[behind])});
        }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const PartialSum& a, const PartialSum& b) { return a.bucket < b.bucket; });
    std::vector<PartialSum> added;
    for (const PartialSum& sum : all) {
        if (added.empty() || added.back().bucket != sum.bucket) {
            added.push_back(sum);
        } else {
            added.back().coarse = add61(added.back().coarse, sum.coarse);
            added.back().fine = add61(added.back().fine, sum.fine);
        }
    }
    return added;
}

std::vector<PartialSum> sums_of_whole(std::span<const std::uint64_t> coarse,
                                      std::span<const std::uint64_t> fine, std::uint64_t scalars,
                                      const ChunkShape& shape) {
    std::vector<PartialSum> sums;
    sums.reserve(coarse.size());
    for (std::size_t i = 0; i < coarse.size(); ++i)
        sums.push_back({i, coarse[i], fine.empty() ? coarse[i] : fine[i]});
    if (!sums.empty()) {
        // The last chunk was digested as if nothing came behind its last block.
        const std::uint64_t last = scalars - (sums.size() - 1) * shape.chunk_scalars;
        const std::uint64_t missing = shape.blocks_per_chunk - divide_up(last, shape.block_scalars);
        const std::uint64_t factor = power61(kRho, missing);
        sums.back().coarse = multiply61(sums.back().coarse, factor);
        sums.back().fine = multiply61(sums.back().fine, factor);
    }
    return sums;
}

std::vector<BucketResidues> compare_residues(std::span<const std::uint64_t> starts, std::uint64_t row_scalars,
                                             std::span<const std::uint8_t> a, std::span<const std::uint8_t> b,
                                             unsigned bits, const ChunkShape& shape, unsigned height) {
    struct Found {
        std::uint64_t correction = 0;
        std::array<std::uint64_t, 16> codes{};  // scalars by their difference modulo 2^bits
    };
    const Coefficients& table = coefficients();
    const auto block_bits = static_cast<unsigned>(std::countr_zero(shape.block_scalars));
    const auto bucket_bits = static_cast<unsigned>(std::countr_zero(shape.chunk_scalars)) + height;
    const std::vector<std::uint64_t> factors = powers_of_rho(shape.blocks_per_chunk << height);
    const unsigned modulus = 1U << bits;
    const unsigned half = modulus / 2;
    std::array<std::int64_t, 16> centred{};
    for (unsigned e = 0; e < modulus; ++e)
        centred[e] = static_cast<std::int64_t>(e) - (e >= half ? static_cast<std::int64_t>(modulus) : 0);
    std::map<std::uint64_t, Found> found;
    Found* to = nullptr;
    std::uint64_t bucket = 0;
    std::uint64_t block = ~0ULL;
    // Of one block, with both halves of the coefficients: 2^30 products of 3 and 30 bits fit.
    std::int64_t low = 0;
    std::int64_t high = 0;
    const auto close_block = [&] {
        if (to == nullptr) return;
        const std::uint64_t in_bucket = block & ((1ULL << (bucket_bits - block_bits)) - 1);
        const std::uint64_t sum = field_sum((static_cast<__int128>(high) << 30) + low);
        to->correction = add61(to->correction, multiply61(sum, factors[factors.size() - 1 - in_bucket]));
        low = high = 0;
    };
    for (std::size_t row = 0; row < starts.size(); ++row) {
        std::uint64_t index = starts[row];
        const std::uint8_t* of_a = a.data() + row * row_scalars;
        const std::uint8_t* of_b = b.data() + row * row_scalars;
        for (std::uint64_t left = row_scalars; left != 0;) {
            if (index >> block_bits != block) {
                close_block();
                block = index >> block_bits;
                if (to == nullptr || index >> bucket_bits != bucket) {
                    bucket = index >> bucket_bits;
                    to = &found[bucket];
                }
            }
            const std::size_t position = index & (shape.block_scalars - 1);
            const std::uint64_t n = std::min<std::uint64_t>(left, shape.block_scalars - position);
            const std::uint64_t* halves = table.halves.data() + position;
            std::int64_t low_sum = 0;
            std::int64_t high_sum = 0;
            for (std::uint64_t i = 0; i < n; ++i) {
                const unsigned e = static_cast<unsigned>(of_a[i] - of_b[i]) & (modulus - 1);
                ++to->codes[e];
                low_sum += centred[e] * static_cast<std::int64_t>(halves[i] & kHalf);
                high_sum += centred[e] * static_cast<std::int64_t>(halves[i] >> 32);
            }
            low += low_sum;
            high += high_sum;
            of_a += n;
            of_b += n;
            index += n;
            left -= n;
        }
    }
    close_block();
    std::vector<BucketResidues> result;
    result.reserve(found.size());
    for (const auto& [number, f] : found) {
        BucketResidues residues;
        residues.bucket = number;
        residues.correction = f.correction;
        residues.beyond = f.codes[half];  // the most negative one has no twin: its sign is unknown
        for (unsigned e = 0; e < modulus; ++e) {
            if (e != half) residues.counts[static_cast<std::size_t>(std::abs(centred[e]))] += f.codes[e];
        }
        result.push_back(residues);
    }
    return result;
}

namespace {

// All residues of one line.
template <unsigned Bits>
void unpack_line(const std::byte* line, std::uint8_t* to) {
    constexpr std::size_t kInByte = 8 / Bits;
    constexpr std::uint8_t kMask = (1U << Bits) - 1;
    for (std::size_t byte = 0; byte < 8; ++byte) {
        for (std::size_t k = 0; k < kInByte; ++k) {
            for (std::size_t word = 0; word < 8; ++word) {
                const auto at = static_cast<std::uint8_t>(line[word * 8 + byte]);
                to[(byte * kInByte + k) * 8 + word] = static_cast<std::uint8_t>(at >> (Bits * k)) & kMask;
            }
        }
    }
}

}  // namespace

void unpack_residues(std::span<const std::byte> lines, std::uint64_t first, std::uint64_t count,
                     unsigned bits, const ChunkShape& shape, std::uint8_t* to) {
    const std::size_t per_line = 512 / bits;
    const std::size_t block_bytes = residue_bytes(shape.block_scalars, bits);
    std::array<std::uint8_t, 256> line;
    std::uint64_t position = first & (shape.block_scalars - 1);
    const std::byte* block = lines.data();
    while (count != 0) {
        const std::size_t within = position % per_line;
        // A short block ends within a line.
        const std::uint64_t n =
            std::min<std::uint64_t>({count, per_line - within, shape.block_scalars - position});
        const std::byte* from = block + position / per_line * kResidueLine;
        std::uint8_t* const into = n == per_line ? to : line.data();
        bits == 4 ? unpack_line<4>(from, into) : unpack_line<2>(from, into);
        if (into != to) std::memcpy(to, line.data() + within, n);
        to += n;
        count -= n;
        position += n;
        if (position == shape.block_scalars) {
            position = 0;
            block += block_bytes;
        }
    }
}

void scatter_rows(std::span<const std::byte> rows, std::span<const std::uint64_t> starts,
                  std::size_t row_bytes, std::size_t item_bytes, std::byte* to) {
    for (std::size_t i = 0; i < starts.size(); ++i)
        std::memcpy(to + starts[i] * item_bytes, rows.data() + i * row_bytes, row_bytes);
}

}  // namespace twinrun
