// Comparison of elements on a device: counts, places, maxima and histograms equal those of the portable kernels.
#include "difference/difference_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "element/convert.hpp"
#include "support/device.hpp"
#include "support/difference_stats.hpp"
#include "support/fake_device.hpp"
#include "support/numbers.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;
using testing::kInfinity;

constexpr DType kScalars[] = {DType::f32, DType::f64, DType::f16,    DType::bf16, DType::i8,
                              DType::i16, DType::i32, DType::i64,    DType::u8,   DType::u16,
                              DType::u32, DType::u64, DType::boolean};

// Two runs of one field's stretch.
struct Stretch {
    std::vector<std::byte> a;
    std::vector<std::byte> b;
    std::uint64_t scalars = 0;
    std::uint64_t index = 0;
    std::size_t skew_a = 0;
    std::size_t skew_b = 0;
};

struct Expected {
    DifferenceStats stats;
    std::uint64_t chunks = 0;
};

Expected expected(const DeviceDifference& what, const std::vector<Stretch>& stretches) {
    Expected all;
    for (const Stretch& s : stretches) {
        const ElementView a = dense_view(what.scalar, s.a.data());
        const ElementView b = dense_view(what.scalar, s.b.data());
        for (std::uint64_t done = 0; done < s.scalars; done += what.chunk_scalars) {
            DifferenceStats chunk;
            compare_elements(kPortableDifference, a, b, done, std::min(what.chunk_scalars, s.scalars - done),
                             s.index + done, what.rule, &chunk);
            all.chunks += chunk.different != 0 ? 1 : 0;
            all.stats.merge(chunk);
        }
    }
    return all;
}

class DeviceCompare {
   public:
    DeviceCompare(int device, const std::vector<Stretch>& stretches) : device_(device) {
        for (const Stretch& s : stretches) {
            held_.emplace_back(device, std::span<const std::byte>(s.a), s.skew_a);
            held_.emplace_back(device, std::span<const std::byte>(s.b), s.skew_b);
            parts_.push_back({held_[held_.size() - 2].data(), held_.back().data(), s.scalars, s.index});
        }
    }
    DeviceDifferenceResult operator()(const DeviceDifference& what, bool result_on_host) const {
        const DeviceDifferenceKernels& kernels = *device_difference_kernels();
        std::size_t device_bytes = 0;
        std::size_t host_bytes = 0;
        kernels.scratch(device_, what, parts_.data(), parts_.size(), &device_bytes, &host_bytes);
        const OnDevice scratch(device_, device_bytes);
        const OnDevice result(device_, sizeof(DeviceDifferenceResult));
        DeviceMemory host_scratch;
        DeviceMemory host_result;
        EXPECT_TRUE(host_scratch.reserve(kHostMemory, host_bytes + 1).ok());
        EXPECT_TRUE(host_result.reserve(kHostMemory, sizeof(DeviceDifferenceResult)).ok());
        std::memset(host_result.data(), 0xA5, sizeof(DeviceDifferenceResult));
        auto stream = DeviceStream::create(device_);
        EXPECT_TRUE(stream.ok());
        void* to = result_on_host ? host_result.data() : result.data();
        const DeviceStatus status = kernels.compare(device_, what, parts_.data(), parts_.size(),
                                                    static_cast<DeviceDifferenceResult*>(to), scratch.data(),
                                                    host_scratch.data(), stream.value().get());
        EXPECT_FALSE(status.failed) << status.text;
        EXPECT_TRUE(stream.value().wait().ok());
        DeviceDifferenceResult found;
        if (result_on_host) {
            std::memcpy(&found, host_result.data(), sizeof found);
        } else {
            found = result.values<DeviceDifferenceResult>().front();
        }
        return found;
    }

    // Each stretch that is not empty as a pair of arrays of its own.
    [[nodiscard]] std::vector<DevicePairResult> pairs(const DeviceDifference& what) const {
        const DeviceDifferenceKernels& kernels = *device_difference_kernels();
        std::vector<DevicePart> parts;
        std::copy_if(parts_.begin(), parts_.end(), std::back_inserter(parts),
                     [](const DevicePart& part) { return part.scalars != 0; });
        std::size_t device_bytes = 0;
        std::size_t host_bytes = 0;
        kernels.pairs_scratch(device_, what, parts.data(), parts.size(), &device_bytes, &host_bytes);
        const OnDevice scratch(device_, device_bytes);
        const OnDevice results(device_, parts.size() * sizeof(DevicePairResult));
        DeviceMemory host_scratch;
        EXPECT_TRUE(host_scratch.reserve(kHostMemory, host_bytes + 1).ok());
        auto stream = DeviceStream::create(device_);
        EXPECT_TRUE(stream.ok());
        DeviceStatus status = kernels.put_pairs(device_, what, parts.data(), parts.size(), scratch.data(),
                                                host_scratch.data(), stream.value().get());
        EXPECT_FALSE(status.failed) << status.text;
        status = kernels.compare_pairs(device_, what, parts.data(), parts.size(),
                                       results.as<DevicePairResult>(), scratch.data(), stream.value().get());
        EXPECT_FALSE(status.failed) << status.text;
        EXPECT_TRUE(stream.value().wait().ok());
        return results.values<DevicePairResult>();
    }

   private:
    int device_;
    std::vector<OnDevice> held_;
    std::vector<DevicePart> parts_;
};

void expect_same(const DeviceDifferenceResult& found, const Expected& wanted) {
    testing::expect_same_read(found.stats, wanted.stats, 1e-12);
    EXPECT_EQ(found.different_chunks, wanted.chunks);
}

void check(int device, const DeviceDifference& what, const std::vector<Stretch>& stretches,
           bool result_on_host = false) {
    const DeviceCompare compare(device, stretches);
    const DeviceDifferenceResult found = compare(what, result_on_host);
    expect_same(found, expected(what, stretches));
    const DeviceDifferenceResult again = compare(what, !result_on_host);
    EXPECT_EQ(found.stats.sum_squares, again.stats.sum_squares);
    EXPECT_EQ(found.stats.sum_squares_different, again.stats.sum_squares_different);

    const auto& period = what.rule.measure.period;
    if (std::any_of(period.begin(), period.end(), [](double length) { return length != 0; })) return;
    const std::vector<DevicePairResult> results = compare.pairs(what);
    const std::vector<DevicePairResult> once_more = compare.pairs(what);
    std::size_t at = 0;
    for (const Stretch& s : stretches) {
        if (s.scalars == 0) continue;
        ASSERT_LT(at, results.size());
        const DevicePairResult& pair = results[at];
        SCOPED_TRACE("pair " + std::to_string(at));
        expect_same(pair.found, expected(what, {s}));
        const auto bits = [&](const std::vector<std::byte>& run, std::uint64_t scalar) {
            std::uint64_t value = 0;
            const std::size_t size = item_bytes(what.scalar);
            if (scalar != kNowhere) std::memcpy(&value, run.data() + (scalar - s.index) * size, size);
            return value;
        };
        const DifferenceStats& stats = pair.found.stats;
        EXPECT_EQ(pair.first_bits[0], bits(s.a, stats.first));
        EXPECT_EQ(pair.first_bits[1], bits(s.b, stats.first));
        EXPECT_EQ(pair.largest_bits[0], bits(s.a, stats.max_abs_at));
        EXPECT_EQ(pair.largest_bits[1], bits(s.b, stats.max_abs_at));
        EXPECT_EQ(stats.sum_squares, once_more[at].found.stats.sum_squares);
        EXPECT_EQ(stats.sum_squares_different, once_more[at].found.stats.sum_squares_different);
        ++at;
    }
    EXPECT_EQ(at, results.size());
}

// ---- data ----

enum class Likeness { equal, sparse, noise, ties, far, anything };
constexpr Likeness kLikenesses[] = {Likeness::equal, Likeness::sparse, Likeness::noise,
                                    Likeness::ties,  Likeness::far,    Likeness::anything};

template <class T>
T real_value(Random& random, int scale, Likeness likeness) {
    if (likeness == Likeness::anything && random() % 16 == 0) {
        constexpr T special[] = {std::numeric_limits<T>::quiet_NaN(),
                                 std::numeric_limits<T>::infinity(),
                                 -std::numeric_limits<T>::infinity(),
                                 T{0},
                                 -T{0},
                                 std::numeric_limits<T>::denorm_min(),
                                 -std::numeric_limits<T>::denorm_min(),
                                 std::numeric_limits<T>::min(),
                                 std::numeric_limits<T>::max(),
                                 -std::numeric_limits<T>::max()};
        return special[random() % std::size(special)];
    }
    if (likeness == Likeness::ties) return static_cast<T>(static_cast<double>(random() % 64) / 8 - 3);
    const double x = std::ldexp(static_cast<double>(random() >> 11), -53) * 2 - 1;
    const int wide = likeness == Likeness::anything ? static_cast<int>(random() % 60) - 30 : 0;
    return static_cast<T>(std::ldexp(x, scale + wide));
}

template <class T>
T real_partner(T a, Random& random, Likeness likeness, const Tolerance& tolerance) {
    const double allowed = tolerance.atol + tolerance.rtol * std::fabs(static_cast<double>(a));
    const double sign = random() % 2 != 0 ? 1 : -1;
    switch (likeness) {
        case Likeness::equal: return a;
        case Likeness::sparse: return random() % 500 == 0 ? static_cast<T>(a + a / 7 + T(0.01)) : a;
        case Likeness::noise:
            return static_cast<T>(static_cast<double>(a) +
                                  sign * 1.1 * std::max(allowed, 1e-6 * std::fabs(static_cast<double>(a))) *
                                      std::ldexp(static_cast<double>(random() >> 11), -53));
        case Likeness::ties:
            return random() % 3 == 0 ? a : static_cast<T>(static_cast<double>(a) + sign * allowed);
        case Likeness::far: return static_cast<T>(a * T(1.5) + T(3));
        default: break;
    }
    switch (random() % 6) {
        case 0: return a;
        case 1: return -a;
        case 2: return static_cast<T>(static_cast<double>(a) + sign * allowed);
        case 3: return std::nextafter(static_cast<T>(static_cast<double>(a) + sign * allowed), T(sign));
        default: return real_value<T>(random, 0, likeness);
    }
}

std::uint32_t half_bits(float x, DType scalar) {  // truncated: any bits will do
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if (scalar == DType::bf16) return bits >> 16;
    const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 112;
    if (exponent >= 31) return (bits >> 16 & 0x8000) | 0x7C00 | (x != x ? 1 : 0);
    if (exponent <= 0) return (bits >> 16 & 0x8000) | (bits >> 13 & 0x3FF);  // a denormal, if another one
    return (bits >> 16 & 0x8000) | static_cast<std::uint32_t>(exponent) << 10 | (bits >> 13 & 0x3FF);
}

Stretch some_stretch(DType scalar, std::uint64_t n, Random& random, Likeness likeness,
                     const Tolerance& tolerance) {
    Stretch s;
    s.scalars = n;
    const std::size_t size = item_bytes(scalar);
    s.a.resize(n * size);
    s.b.resize(n * size);
    const int scale = static_cast<int>(random() % 20) - 8;
    const unsigned small = static_cast<unsigned>(random() % 60);
    for (std::uint64_t i = 0; i < n; ++i) {
        std::uint64_t x = 0;
        std::uint64_t y = 0;
        if (scalar == DType::f64) {
            const auto a = real_value<double>(random, scale, likeness);
            x = std::bit_cast<std::uint64_t>(a);
            y = std::bit_cast<std::uint64_t>(real_partner(a, random, likeness, tolerance));
            if (likeness == Likeness::anything && random() % 8 == 0) y = random();
            if (likeness == Likeness::anything && random() % 32 == 0) x = random() % (1ULL << 54);
        } else if (scalar == DType::f32) {
            const auto a = real_value<float>(random, scale, likeness);
            x = std::bit_cast<std::uint32_t>(a);
            y = std::bit_cast<std::uint32_t>(real_partner(a, random, likeness, tolerance));
            if (likeness == Likeness::anything && random() % 8 == 0) y = random();
        } else if (is_floating(scalar)) {
            const auto a = real_value<float>(random, scale, likeness);
            x = half_bits(a, scalar);
            y = likeness == Likeness::equal ? x
                                            : half_bits(real_partner(a, random, likeness, tolerance), scalar);
            if (likeness == Likeness::anything && random() % 4 == 0) y = random();
        } else {
            x = random() >> (likeness == Likeness::anything ? random() % 64 : small);
            if (scalar == DType::boolean) x %= 3;
            const std::uint64_t near = x + random() % 5 - 2;
            switch (likeness) {
                case Likeness::equal: y = x; break;
                case Likeness::sparse: y = random() % 500 == 0 ? near : x; break;
                case Likeness::noise: y = near; break;
                case Likeness::ties:
                    y = x + static_cast<std::uint64_t>(std::min(tolerance.atol, 100.0));
                    break;
                case Likeness::far: y = x + 1000; break;
                default: y = random() % 2 != 0 ? near : random(); break;
            }
        }
        std::memcpy(s.a.data() + i * size, &x, size);
        std::memcpy(s.b.data() + i * size, &y, size);
    }
    return s;
}

Tolerance some_tolerance(Random& random) {
    const double any = std::ldexp(static_cast<double>(random() >> 11), -53 - static_cast<int>(random() % 30));
    switch (random() % 10) {
        case 0: return {0, 0};
        case 1: return {0, any};
        case 2: return {any, any};
        case 3: return {0.125, 0};
        case 4: return {0, 0.25};
        case 5: return {0.5, 0.125};
        case 6: return {2, 0};
        case 7: return {1e-40, 1e-300};
        case 8: return {std::numeric_limits<double>::denorm_min(), 0};
        default: return {any, 0};
    }
}

std::string named(const DeviceDifference& what, const std::vector<Stretch>& stretches, Likeness likeness) {
    std::string text =
        std::string(dtype_name(what.scalar)) + " likeness " + std::to_string(static_cast<int>(likeness)) +
        " chunk " + std::to_string(what.chunk_scalars) + " nan_equal " + std::to_string(what.rule.nan_equal) +
        " atol " + std::to_string(what.rule.tolerance.atol) + " rtol " +
        std::to_string(what.rule.tolerance.rtol) + " scalars";
    for (const Stretch& s : stretches)
        text += " " + std::to_string(s.scalars) + "@" + std::to_string(s.index);
    return text;
}

// ---- other measures ----

constexpr DType kMeasured[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

double value_of(std::uint64_t bits, DType scalar) {
    alignas(64) std::byte room[64];
    const void* const value = load(dense_view(scalar, &bits), 0, 1, room);
    return scalar == DType::f64 ? *static_cast<const double*>(value)
                                : static_cast<double>(*static_cast<const float*>(value));
}
std::uint64_t bits_nearest(double x, DType scalar) {
    if (scalar == DType::f64) return std::bit_cast<std::uint64_t>(x);
    if (scalar == DType::f32) return std::bit_cast<std::uint32_t>(static_cast<float>(x));
    return half_bits(static_cast<float>(x), scalar);
}
void put_bits(std::uint64_t bits, DType scalar, std::vector<std::byte>& to) {
    for (std::size_t byte = 0; byte < item_bytes(scalar); ++byte)
        to.push_back(static_cast<std::byte>(bits >> 8 * byte));
}
// The value of the type that lies so many steps above; beyond the largest are its infinities and NaNs.
std::uint64_t stepped(std::uint64_t bits, DType scalar, std::int64_t steps) {
    const std::uint64_t sign = std::uint64_t{1} << (8 * item_bytes(scalar) - 1);
    const std::uint64_t magnitude = bits & (sign - 1);
    const std::uint64_t place = (bits & sign) != 0 ? 0 - magnitude : magnitude;
    const auto there = static_cast<std::int64_t>(place + static_cast<std::uint64_t>(steps));
    if (there >= 0) return static_cast<std::uint64_t>(there) & (sign - 1);
    return ((0 - static_cast<std::uint64_t>(there)) & (sign - 1)) | sign;
}

double unit(Random& random) { return std::ldexp(static_cast<double>(random() >> 11), -53); }

std::uint64_t any_bits(Random& random, DType scalar, Likeness likeness, double scale) {
    if (likeness == Likeness::anything && random() % 8 == 0) {
        constexpr double special[] = {0, -0.0, kInfinity, -kInfinity, 5e-324, -5e-324, 1e-45, 0x1p-24, 1e300};
        if (random() % 12 == 0) return bits_nearest(std::numeric_limits<double>::quiet_NaN(), scalar);
        if (random() % 3 == 0) return random();
        return bits_nearest(special[random() % std::size(special)], scalar);
    }
    return bits_nearest((unit(random) * 2 - 1) * scale, scalar);
}

std::uint64_t measured_partner(std::uint64_t bits_a, Random& random, DType scalar, Likeness likeness,
                               const DifferenceRule& rule, double period) {
    const double a = value_of(bits_a, scalar);
    const double allowed = rule.tolerance.atol + rule.tolerance.rtol * std::fabs(a);
    const double sign = random() % 2 != 0 ? 1 : -1;
    const bool rarely = random() % 400 == 0;
    if (likeness == Likeness::equal || (likeness == Likeness::sparse && !rarely)) return bits_a;
    if (likeness == Likeness::anything && random() % 6 == 0) return random();
    if (rule.measure.ulps != Measure::kNoUlps && (period == 0 || random() % 2 == 0)) {
        const std::uint64_t n = rule.measure.ulps;
        std::uint64_t steps =
            likeness == Likeness::noise && !rarely ? random() % (n / 2 + 1) : n + random() % 3 - 1;
        if (likeness == Likeness::far) steps = n + 1 + random() % 100;
        return stepped(bits_a, scalar, static_cast<std::int64_t>(sign < 0 ? 0 - steps : steps));
    }
    if (period == 0) return bits_nearest(a + sign * allowed * (likeness == Likeness::far ? 3 : 1), scalar);
    double turns = 0;
    if (likeness == Likeness::noise) turns = rarely ? sign : 0;
    // Sparse: one in a group, so that no other pair sends it to the reference.
    if (likeness == Likeness::ties || likeness == Likeness::sparse)
        turns = static_cast<double>(random() % 5) - 2;
    if (likeness == Likeness::far) return bits_nearest(a + sign * unit(random) * 3 * period, scalar);
    if (likeness == Likeness::anything)
        turns =
            sign * std::ldexp(1.0, static_cast<int>(random() % 56)) + static_cast<double>(random() % 3) - 1;
    constexpr double shares[] = {0.5, 0.49, 0.51, 0.25, 0.4999999999, 0.5000000001, 1};
    double past = sign * allowed;
    switch (random() % 6) {
        case 0: past = std::nextafter(past, kInfinity); break;
        case 1: past = std::nextafter(past, -kInfinity); break;
        case 2: past = sign * unit(random) * allowed; break;
        case 3:
            if (likeness != Likeness::noise) past = sign * shares[random() % std::size(shares)] * period;
            break;
        case 4: past = 0; break;
        default: break;
    }
    return bits_nearest(a + turns * period + past, scalar);
}

Stretch measured_stretch(DType scalar, std::uint64_t n, std::uint64_t index, Random& random,
                         Likeness likeness, const DifferenceRule& rule) {
    Stretch s;
    s.scalars = n;
    s.index = index;
    const std::size_t size = item_bytes(scalar);
    s.a.resize(n * size);
    s.b.resize(n * size);
    double scale = rule.measure.period[0] > 0 && random() % 3 != 0 ? rule.measure.period[0] : 100;
    if (random() % 8 == 0) scale = std::ldexp(scale, static_cast<int>(random() % 80) - 40);
    for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t x = any_bits(random, scalar, likeness, scale);
        const std::uint64_t y =
            measured_partner(x, random, scalar, likeness, rule, rule.measure.period_of(index + i));
        std::memcpy(s.a.data() + i * size, &x, size);
        std::memcpy(s.b.data() + i * size, &y, size);
    }
    return s;
}

Measure some_measure(Random& random, DType scalar) {
    Measure m;
    const auto which = random() % 4;  // 0: ulps; 1: both
    if (which < 2) {
        constexpr std::uint64_t steps[] = {
            0,          1,           4,          100,           255,        256,
            257,        258,         1 << 20,    (1 << 24) - 1, 1 << 24,    (1 << 24) + 1,
            1ULL << 31, ~0ULL >> 32, 1ULL << 32, 1ULL << 52,    1ULL << 62, ~0ULL - 1};
        m.ulps = steps[random() % (random() % 2 == 0 ? 4 : std::size(steps))];
        if (item_bytes(scalar) == 2 && random() % 2 == 0) m.ulps = random() % 70000;
    }
    if (which == 0) return m;
    m.components = static_cast<std::uint32_t>(1 + random() % Measure::kMostComponents);
    constexpr std::uint64_t strides[] = {1,   1,    1,    2,     3,          64,        255,
                                         256, 1000, 5000, 70000, 1ULL << 40, ~0ULL >> 1};
    m.component_stride = strides[random() % std::size(strides)];
    constexpr double lengths[] = {1, 62.5, 360, 6.283185307179586, 0.1, 1e-3, 1e6, 0, 0};
    for (std::uint32_t c = 0; c < m.components; ++c)
        m.period[c] = lengths[random() % std::size(lengths)];
    if (random() % 12 == 0)
        m.period[0] = std::ldexp(1 + unit(random), static_cast<int>(random() % 2090) - 1070);
    if (random() % 12 == 0) m.period[0] = random() % 2 == 0 ? 5e-324 : std::numeric_limits<double>::max();
    return m;
}

std::string named(const DeviceDifference& what, const std::vector<Stretch>& stretches, Likeness likeness,
                  const Measure& measure) {
    std::string text = named(what, stretches, likeness) + " ulps " + std::to_string(measure.ulps) +
                       " stride " + std::to_string(measure.component_stride) + " periods";
    for (std::uint32_t c = 0; c < measure.components; ++c)
        text += " " + std::to_string(measure.period[c]);
    return text;
}

// ---- tests ----

TEST(DeviceDifference, EqualsThePortableKernels) {
    TWR_TEST_DEVICE(device);
    Random random(1);
    for (const DType scalar : kScalars) {
        for (const Likeness likeness : kLikenesses) {
            for (int round = 0; round < test_rounds(12); ++round) {
                DeviceDifference what;
                what.scalar = scalar;
                what.rule.tolerance = some_tolerance(random);
                what.rule.nan_equal = random() % 3 != 0;
                constexpr std::uint64_t chunks[] = {1,    3,    8,    16,         64,        100,
                                                    1024, 4096, 5000, 1ULL << 20, 1ULL << 40};
                what.chunk_scalars = chunks[random() % std::size(chunks)];
                std::vector<Stretch> stretches;
                const std::size_t parts = round % 3 == 0 ? 1 : 1 + random() % 40;
                std::uint64_t index = random() % 1000;
                for (std::size_t p = 0; p < parts; ++p) {
                    const std::uint64_t n =
                        random() % 8 == 0 ? 0 : 1 + random() % (parts == 1 ? 70000 : 3000);
                    Stretch s =
                        some_stretch(scalar, n, random, random() % 4 == 0 ? Likeness::equal : likeness,
                                     what.rule.tolerance);
                    s.index = index;
                    index += n + random() % 100;
                    if (random() % 2 == 0) s.skew_a = random() % 16 / item_bytes(scalar) * item_bytes(scalar);
                    if (random() % 2 == 0) s.skew_b = random() % 16 / item_bytes(scalar) * item_bytes(scalar);
                    stretches.push_back(std::move(s));
                }
                if (random() % 4 == 0) std::shuffle(stretches.begin(), stretches.end(), random);
                SCOPED_TRACE(named(what, stretches, likeness));
                check(device, what, stretches, random() % 2 == 0);
                if (HasFailure()) return;
            }
        }
    }
}

// Large enough that every warp has many tiles and bounds that others found.
TEST(DeviceDifference, EqualsThePortableKernelsForManyTiles) {
    TWR_TEST_DEVICE(device);
    Random random(2);
    for (const DType scalar : {DType::f32, DType::f64, DType::i64, DType::f16}) {
        for (const Likeness likeness : kLikenesses) {
            DeviceDifference what;
            what.scalar = scalar;
            what.rule.tolerance = {1e-6, random() % 2 != 0 ? 1e-6 : 0};
            const auto n = static_cast<std::uint64_t>(test_rounds(30)) * 100000 + random() % 1000;
            const std::vector<Stretch> stretches = {
                some_stretch(scalar, n, random, likeness, what.rule.tolerance)};
            SCOPED_TRACE(named(what, stretches, likeness));
            check(device, what, stretches);
            if (HasFailure()) return;
        }
    }
}

TEST(DeviceDifference, EqualsThePortableKernelsForUlpsAndPeriods) {
    TWR_TEST_DEVICE(device);
    Random random(11);
    for (const DType scalar : kMeasured) {
        for (const Likeness likeness : kLikenesses) {
            for (int round = 0; round < test_rounds(30); ++round) {
                DeviceDifference what;
                what.scalar = scalar;
                what.rule.tolerance = some_tolerance(random);
                if (random() % 2 == 0) what.rule.tolerance = {random() % 2 == 0 ? 0 : 1e-3, 0};
                what.rule.nan_equal = random() % 3 != 0;
                what.rule.measure = some_measure(random, scalar);
                constexpr std::uint64_t chunks[] = {1, 3, 64, 100, 1024, 4096, 1ULL << 20};
                what.chunk_scalars = chunks[random() % std::size(chunks)];
                std::vector<Stretch> stretches;
                const std::size_t parts = round % 3 == 0 ? 1 : 1 + random() % 20;
                std::uint64_t index = random() % 4 == 0 ? random() >> 1 : random() % 1000;
                for (std::size_t p = 0; p < parts; ++p) {
                    const std::uint64_t n =
                        random() % 8 == 0 ? 0 : 1 + random() % (parts == 1 ? 40000 : 3000);
                    Stretch s = measured_stretch(scalar, n, index, random,
                                                 random() % 4 == 0 ? Likeness::equal : likeness, what.rule);
                    index += n + random() % 100;
                    if (random() % 2 == 0) s.skew_a = random() % 16 / item_bytes(scalar) * item_bytes(scalar);
                    if (random() % 2 == 0) s.skew_b = random() % 16 / item_bytes(scalar) * item_bytes(scalar);
                    stretches.push_back(std::move(s));
                }
                if (random() % 4 == 0) std::shuffle(stretches.begin(), stretches.end(), random);
                SCOPED_TRACE(named(what, stretches, likeness, what.rule.measure));
                check(device, what, stretches, random() % 2 == 0);
                if (HasFailure()) return;
            }
        }
    }
}

// As for the plain rule: every warp has many tiles. Positions in a box, and a field with so many values between its runs.
TEST(DeviceDifference, EqualsThePortableKernelsForUlpsAndPeriodsOfManyTiles) {
    TWR_TEST_DEVICE(device);
    Random random(12);
    for (const DType scalar : kMeasured) {
        for (const Likeness likeness : kLikenesses) {
            for (const bool round : {false, true}) {
                DeviceDifference what;
                what.scalar = scalar;
                what.rule.tolerance = {round ? 1e-3 : 0, 0};
                const auto n = static_cast<std::uint64_t>(test_rounds(10)) * 100000 + random() % 1000;
                if (round) {
                    what.rule.measure.period = {10, 10, 20};
                    what.rule.measure.components = 3;
                    what.rule.measure.component_stride = random() % 2 == 0 ? 1 : n / 3 + 1;
                } else {
                    what.rule.measure.ulps = 4;
                }
                const std::vector<Stretch> stretches = {
                    measured_stretch(scalar, n, 0, random, likeness, what.rule)};
                SCOPED_TRACE(named(what, stretches, likeness, what.rule.measure));
                check(device, what, stretches);
                if (HasFailure()) return;
            }
        }
    }
}

// Every two neighbours of a narrow type, and every value and its negative, at the boundary of what is forgiven.
TEST(DeviceDifference, EqualsThePortableKernelsForEveryNarrowValue) {
    TWR_TEST_DEVICE(device);
    for (const DType scalar : {DType::f16, DType::bf16}) {
        for (const std::int64_t steps : {1, 2, 300}) {
            Stretch s;
            s.scalars = 3 << 16;
            for (std::uint64_t x = 0; x < 1 << 16; ++x) {
                for (const std::uint64_t y :
                     {stepped(x, scalar, steps), stepped(x, scalar, -steps), x ^ 0x8000}) {
                    put_bits(x, scalar, s.a);
                    put_bits(y, scalar, s.b);
                }
            }
            for (const std::int64_t ulps : {steps, steps - 1}) {
                DeviceDifference what;
                what.scalar = scalar;
                what.rule.measure.ulps = static_cast<std::uint64_t>(ulps);
                SCOPED_TRACE(named(what, {}, Likeness::ties, what.rule.measure) + " steps " +
                             std::to_string(steps));
                check(device, what, {s});
            }
        }
    }
}

// Every pair of such values alone among equal ones, which the first look decides: a miss is seen in the count.
TEST(DeviceDifference, EqualsThePortableKernelsForOnePairAmongEqualOnes) {
    TWR_TEST_DEVICE(device);
    for (const DType scalar : kMeasured) {
        const std::uint64_t sign = std::uint64_t{1} << (8 * item_bytes(scalar) - 1);
        const std::uint64_t infinity = bits_nearest(kInfinity, scalar);
        std::vector<std::uint64_t> values;
        for (const std::uint64_t near : {std::uint64_t{0}, bits_nearest(1, scalar), bits_nearest(10, scalar),
                                         bits_nearest(1e-4, scalar), infinity - 2, infinity / 2}) {
            for (const std::uint64_t step : {0, 1, 3}) {
                values.push_back(near + step);
                values.push_back((near + step) | sign);
            }
        }
        std::vector<DifferenceRule> rules;
        for (const std::uint64_t ulps :
             {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{127}, sign >> 9, (sign >> 8) - 1, sign >> 8,
              sign >> 5, sign - infinity, infinity, 2 * infinity - 2, ~std::uint64_t{1}}) {
            rules.push_back({{0, 0}, true, {.ulps = ulps}});
        }
        for (const double period : {2.0, 10.0, 0.3, 1e30})
            rules.push_back({{1e-5, 0}, true, {.period = {period}}});
        for (const DifferenceRule& rule : rules) {
            std::vector<Stretch> stretches;
            std::uint64_t index = 0;
            const auto check_these = [&] {
                DeviceDifference what;
                what.scalar = scalar;
                what.rule = rule;
                SCOPED_TRACE(named(what, {}, Likeness::ties, rule.measure));
                check(device, what, stretches);
                stretches.clear();
            };
            for (const std::uint64_t x : values) {
                for (const std::uint64_t y : values) {
                    Stretch s;
                    s.scalars = 8;
                    s.index = index;
                    index += s.scalars;
                    for (std::uint64_t i = 0; i < s.scalars; ++i) {
                        put_bits(x, scalar, s.a);
                        put_bits(i == 5 ? y : x, scalar, s.b);
                    }
                    stretches.push_back(std::move(s));
                    if (stretches.size() == 32)
                        check_these();  // few: the next one of a warp is looked at otherwise
                }
                if (HasFailure()) return;
            }
            check_these();
        }
    }
}

// Half-way round, where rounding may choose the longer way: that would be the largest distance.
TEST(DeviceDifference, EqualsThePortableKernelsHalfWayRound) {
    TWR_TEST_DEVICE(device);
    Random random(13);
    for (const DType scalar : {DType::f32, DType::f64}) {
        for (int round = 0; round < test_rounds(40); ++round) {
            const double period = value_of(bits_nearest(0.1 + unit(random) * 100, scalar), scalar);
            Stretch s;
            s.scalars = 512;
            const std::size_t size = item_bytes(scalar);
            s.a.resize(s.scalars * size);
            s.b.resize(s.scalars * size);
            for (std::uint64_t i = 0; i < s.scalars; ++i) {
                const double halves = static_cast<double>(random() % 40) - 20 + 0.5;
                const std::uint64_t x = bits_nearest(i % 2 == 0 ? 0 : unit(random) * period, scalar);
                const std::uint64_t y = stepped(bits_nearest(value_of(x, scalar) + halves * period, scalar),
                                                scalar, static_cast<std::int64_t>(random() % 7) - 3);
                std::memcpy(s.a.data() + i * size, &x, size);
                std::memcpy(s.b.data() + i * size, &y, size);
            }
            DeviceDifference what;
            what.scalar = scalar;
            what.rule = {{period / 2, 0}, true, {.period = {period}}};
            SCOPED_TRACE(named(what, {s}, Likeness::ties, what.rule.measure));
            check(device, what, {s});
            if (HasFailure()) return;
        }
    }
}

// |a - b| rounds to half the period and is more: the other way round is as far apart as is allowed.
TEST(DeviceDifference, ADistanceThatRoundsToHalfWayRound) {
    TWR_TEST_DEVICE(device);
    for (const double period : {2.0, 0.5, 0x1p60}) {
        for (const std::uint64_t at : {0, 7, 300, 511}) {
            for (const std::uint64_t ulps : {Measure::kNoUlps, std::uint64_t{4}}) {
                const double half = period / 2;
                std::vector<double> x(512, half / 3);
                std::vector<double> y = x;
                x[at] = half;
                y[at] = -half * 0x1p-53;
                Stretch s;
                s.scalars = x.size();
                s.a.resize(x.size() * sizeof(double));
                s.b.resize(x.size() * sizeof(double));
                std::memcpy(s.a.data(), x.data(), s.a.size());
                std::memcpy(s.b.data(), y.data(), s.b.size());
                DeviceDifference what;
                what.scalar = DType::f64;
                what.rule = {{std::nextafter(half, 0.0), 0}, true, {.ulps = ulps, .period = {period}}};
                what.chunk_scalars = 128;
                SCOPED_TRACE(named(what, {s}, Likeness::ties, what.rule.measure));
                check(device, what, {s});
            }
        }
    }
}

// The first of equal maxima is the one that is told, wherever they lie.
TEST(DeviceDifference, TiesGoToTheSmallestIndex) {
    TWR_TEST_DEVICE(device);
    Random random(3);
    for (const DType scalar : {DType::f32, DType::f64}) {
        for (int round = 0; round < test_rounds(10); ++round) {
            DeviceDifference what;
            what.scalar = scalar;
            what.rule.tolerance = {round % 2 == 0 ? 0.75 : 0.1, 0};
            const std::uint64_t n = 200000 + random() % 1000;
            const std::size_t size = item_bytes(scalar);
            Stretch s;
            s.scalars = n;
            s.a.resize(n * size);
            s.b.resize(n * size);
            for (std::uint64_t i = 0; i < n; ++i) {
                const double x = round < 5 ? 1 : 1 + static_cast<double>(random() % 2);
                const double y = round % 3 == 0 ? 0.5 : random() % 3 == 0 ? x : 0.5;
                const auto put = [&](std::vector<std::byte>& to, double value) {
                    const auto single = static_cast<float>(value);
                    std::memcpy(to.data() + i * size, size == 4 ? static_cast<const void*>(&single) : &value,
                                size);
                };
                put(s.a, x);
                put(s.b, y);
            }
            std::vector<Stretch> stretches = {s, s, s};
            stretches[0].index = 2 * n;  // the smallest indices come last
            stretches[1].index = n;
            SCOPED_TRACE(round);
            check(device, what, stretches);
            if (HasFailure()) return;
        }
    }
}

// Numbers of 30 powers of two, alone: d is rounded to a number that the tolerance is, or is next to.
TEST(DeviceDifference, ToleranceThatARoundedDistanceEquals) {
    TWR_TEST_DEVICE(device);
    for (const DType scalar : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
        for (const double large : {1.0, 0.1, 3.0}) {
            const std::uint64_t bits = bits_nearest(large, scalar);
            const double value = value_of(bits, scalar);
            std::vector<std::uint64_t> numbers = {bits};
            for (int power = -80; power < 0; ++power) {
                numbers.push_back(bits_nearest(std::ldexp(1.0, power), scalar));
                numbers.push_back(bits_nearest(-std::ldexp(1.5, power), scalar));
            }
            Stretch s;
            const auto put = [&](std::vector<std::byte>& to, std::uint64_t x) { put_bits(x, scalar, to); };
            for (const std::uint64_t small : numbers) {
                for (unsigned copies = 0; copies < 8; ++copies) {
                    put(s.a, copies % 2 == 0 ? bits : small);
                    put(s.b, copies % 2 == 0 ? small : bits);
                }
            }
            s.scalars = s.a.size() / item_bytes(scalar);
            for (const double atol : {value, std::nextafter(value, 0.0), std::nextafter(value, kInfinity),
                                      large, value * (1 + 0x1p-29), value * (1 - 0x1p-29)}) {
                for (const double rtol : {0.0, 0x1p-40}) {
                    DeviceDifference what;
                    what.scalar = scalar;
                    what.rule.tolerance = {atol, rtol};
                    SCOPED_TRACE(named(what, {s}, Likeness::ties));
                    check(device, what, {s});
                    if (HasFailure()) return;
                }
            }
        }
    }
}

// Of small integers many pairs are exactly as far apart as is allowed.
TEST(DeviceDifference, IntegersThatAreAsFarApartAsAllowed) {
    TWR_TEST_DEVICE(device);
    Random random(5);
    for (const DType scalar :
         {DType::u8, DType::i8, DType::i16, DType::u16, DType::i32, DType::i64, DType::u64}) {
        for (const Tolerance tolerance : {Tolerance{1, 0}, Tolerance{2, 0.25}, Tolerance{0, 0.5}}) {
            Stretch s;
            s.scalars = 20011;
            for (std::uint64_t i = 0; i < s.scalars; ++i) {
                const std::uint64_t x = random() % 64;
                for (auto* to : {&s.a, &s.b}) {
                    put_bits(to == &s.a ? x : x + random() % 4, scalar, *to);
                }
            }
            DeviceDifference what;
            what.scalar = scalar;
            what.rule.tolerance = tolerance;
            SCOPED_TRACE(named(what, {s}, Likeness::ties));
            check(device, what, {s});
            if (HasFailure()) return;
        }
    }
}

TEST(DeviceDifference, FindsOneDifferenceAnywhere) {
    TWR_TEST_DEVICE(device);
    Random random(4);
    for (const DType scalar : {DType::f32, DType::f64, DType::bf16, DType::u8, DType::i32, DType::u64}) {
        for (int round = 0; round < test_rounds(40); ++round) {
            DeviceDifference what;
            what.scalar = scalar;
            what.chunk_scalars = 1024;
            const std::uint64_t n = 1 + random() % 20000;
            std::vector<Stretch> stretches = {some_stretch(scalar, n, random, Likeness::equal, {})};
            stretches[0].b[random() % stretches[0].b.size()] ^= std::byte{1};
            if (round % 4 == 1) what.rule.measure.ulps = 0;
            if (round % 4 == 2) what.rule.measure.period = {1000};
            stretches[0].skew_a = stretches[0].skew_b = random() % 2 * item_bytes(scalar);
            stretches[0].index = 7;
            SCOPED_TRACE(named(what, stretches, Likeness::equal));
            check(device, what, stretches);
            if (HasFailure()) return;
        }
    }
}

// Pairs of so many tiles that their shares differ in size, and that several blocks count their
// chunks.
TEST(DeviceDifference, EqualsThePortableKernelsForSharesOfManySizes) {
    TWR_TEST_DEVICE(device);
    if (testing::fake_device() != nullptr) GTEST_SKIP() << "the fake device has no shares";
    Random random(9);
    DeviceDifference what;
    what.rule.tolerance.atol = 1e-6;
    what.chunk_scalars = 1024;
    std::vector<Stretch> stretches;
    for (const std::uint64_t n : {std::uint64_t{70'000}, std::uint64_t{320'000'000}, std::uint64_t{5},
                                  std::uint64_t{30'000'000}}) {
        Stretch s = some_stretch(DType::f32, std::min<std::uint64_t>(n, 100'000), random, Likeness::noise,
                                 what.rule.tolerance);
        s.scalars = n;
        s.a.resize(n * sizeof(float));
        s.b.resize(n * sizeof(float));
        for (int i = 0; i < 300; ++i)
            s.b[random() % (n * sizeof(float))] = std::byte{0x3F};
        stretches.push_back(std::move(s));
    }
    check(device, what, stretches);
}

TEST(DeviceDifference, NansAndInfinitiesOfEqualBits) {
    TWR_TEST_DEVICE(device);
    for (const bool nan_equal : {true, false}) {
        std::vector<double> values(5000, 1.5);
        values[17] = values[4000] = std::numeric_limits<double>::quiet_NaN();
        values[18] = kInfinity;
        values[999] = -kInfinity;
        Stretch s;
        s.scalars = values.size();
        s.a.resize(values.size() * 8);
        std::memcpy(s.a.data(), values.data(), s.a.size());
        s.b = s.a;
        DeviceDifference what;
        what.scalar = DType::f64;
        what.rule = {{1e300, 0}, nan_equal};
        check(device, what, {s});
        const DeviceDifferenceResult found = DeviceCompare(device, {s})(what, true);
        EXPECT_EQ(found.stats.different, nan_equal ? 0U : 2U);
        EXPECT_EQ(found.stats.largest, 1.5);
    }
}

TEST(DeviceDifference, OfNothing) {
    TWR_TEST_DEVICE(device);
    DeviceDifference what;
    check(device, what, {});
    check(device, what, {Stretch{}, Stretch{}});
}

}  // namespace
}  // namespace twinrun
