// Digests, residues and sketch checks on a device equal those of the portable kernels bit for bit.
#include "digest/digest_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "support/device.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;

constexpr DType kScalars[] = {DType::f16, DType::bf16, DType::f32,    DType::f64, DType::i8,
                              DType::i16, DType::i32,  DType::i64,    DType::u8,  DType::u16,
                              DType::u32, DType::u64,  DType::boolean};

// Bytes of scalars that lie around a few magnitudes, with what goes wrong sprinkled in.
std::vector<std::byte> some_values(DType scalar, std::size_t n, Random& random) {
    std::vector<std::byte> bytes(n * item_bytes(scalar));
    const int scale = static_cast<int>(random() % 24) - 12;
    const unsigned rare = random() % 3 == 0 ? 0 : 1U << (4 + random() % 8);  // one in this many is odd
    const bool alike = random() % 4 != 0;  // halves of a few magnitudes, else of all
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < n; ++i) {
        const bool odd = rare != 0 && random() % rare == 0;
        const bool real = scalar == DType::f32 || scalar == DType::f64;
        const double x = real ? std::ldexp(normal(random), scale) : 0;
        std::uint64_t raw = random();
        const std::size_t size = item_bytes(scalar);
        if (scalar == DType::f32) {
            constexpr float special[] = {
                std::numeric_limits<float>::quiet_NaN(),   std::numeric_limits<float>::infinity(),
                -std::numeric_limits<float>::infinity(),   -0.0F,
                std::numeric_limits<float>::max(),         std::numeric_limits<float>::denorm_min(),
                -std::numeric_limits<float>::denorm_min(), 1e30F};
            raw = std::bit_cast<std::uint32_t>(odd ? special[random() % 8] : static_cast<float>(x));
            if (odd && random() % 4 == 0) raw = static_cast<std::uint32_t>(random());
        } else if (scalar == DType::f64) {
            const double special[] = {std::numeric_limits<double>::quiet_NaN(),
                                      std::numeric_limits<double>::infinity(),
                                      -std::numeric_limits<double>::infinity(),
                                      -0.0,
                                      std::numeric_limits<double>::max(),
                                      -std::numeric_limits<double>::denorm_min(),
                                      std::bit_cast<double>(kNanSeed),
                                      std::bit_cast<double>(kNegativeInfinitySeed),
                                      std::ldexp(1.0, static_cast<int>(random() % 90)),
                                      -std::ldexp(1.0, static_cast<int>(random() % 90)),
                                      std::bit_cast<double>(random())};
            raw = std::bit_cast<std::uint64_t>(odd ? special[random() % 11] : x);
        } else if (size == 8) {
            raw = odd ? raw : raw >> (20 + random() % 40);
            if (!odd && scalar == DType::i64 && random() % 2 == 0) raw = ~raw;
        } else if (scalar == DType::f16 || scalar == DType::bf16) {
            const bool brain = scalar == DType::bf16;
            if (!odd && alike) {
                const int exponent = brain ? 127 + scale : std::clamp(15 + scale, 0, 27);
                const unsigned digits = brain ? 7 : 10;
                raw = (raw & 0x8000) | (static_cast<unsigned>(exponent) + raw % 4) << digits |
                      (raw >> 20 & ((1U << digits) - 1));
            } else if (!odd) {
                raw &= 0xBFFF;  // finite
            }
        } else if (scalar == DType::boolean) {
            raw = odd ? raw & 0xFF : raw & 1;
        }
        std::memcpy(bytes.data() + i * size, &raw, size);
    }
    return bytes;
}

Tolerance some_tolerance(Random& random) {
    const double a = std::ldexp(1 + std::ldexp(static_cast<double>(random() >> 11), -53),
                                -static_cast<int>(random() % 50));
    switch (random() % 10) {
        case 0: return {0, 0};
        case 1: return {0, 1e-3};
        case 2: return {a, 1e-6};
        case 3: return {0, std::ldexp(1.0, -static_cast<int>(random() % 52))};
        case 4: return {1e-300, 0};
        case 5: return {std::ldexp(1.0, static_cast<int>(random() % 40)), 0};
        // Keys of any origin, and any part of their bits in cells.
        case 6:
            return {std::ldexp(1 + std::ldexp(static_cast<double>(random() >> 11), -53),
                               static_cast<int>(random() % 2000) - 1000),
                    std::ldexp(1.0, -static_cast<int>(random() % 52))};
        case 7: return {a, std::ldexp(1.0, -static_cast<int>(random() % 52))};
        default: return {a, 0};
    }
}

struct Expected {
    std::vector<ChunkDigest> digests;
    std::vector<std::byte> residues;
    ElementCounts counts;
};
std::uint64_t residue_size(const DigestSettings& s, DType scalar, std::uint64_t scalars) {
    if (s.rule.residue_bits == 0) return 0;
    const ChunkShape shape = chunk_shape(scalar, s.chunk_bytes, s.rule.residue_bits);
    return scalars / shape.chunk_scalars * shape.residue_bytes_per_chunk +
           chunk_residue_bytes(scalar, scalars % shape.chunk_scalars, s.rule.residue_bits);
}
Expected expected(const DigestSettings& settings, DType scalar, const std::vector<std::byte>& bytes) {
    Expected e;
    const std::uint64_t scalars = bytes.size() / item_bytes(scalar);
    const ChunkShape shape = chunk_shape(scalar, settings.chunk_bytes, settings.rule.residue_bits);
    e.digests.resize(divide_up(scalars, shape.chunk_scalars));
    e.residues.resize(residue_size(settings, scalar, scalars));
    Digester digester(settings, scalar, Backend::portable);
    digester.chunks(dense_view(scalar, bytes.data()), 0, scalars, e.digests.data(),
                    e.residues.empty() ? nullptr : e.residues.data(), &e.counts);
    return e;
}

struct Case {
    DType scalar;
    DigestSettings settings;
    std::vector<std::byte> bytes;
    std::size_t skew;
};
std::string describe(const Case& c) {
    return std::string(dtype_name(c.scalar)) + ", " + std::to_string(c.bytes.size() / item_bytes(c.scalar)) +
           " scalars, atol " + std::to_string(c.settings.tolerance.atol) + ", rtol " +
           std::to_string(c.settings.tolerance.rtol) + ", kind " +
           std::to_string(static_cast<int>(c.settings.rule.kind)) + ", e " +
           std::to_string(c.settings.rule.fine_exponent) + ", bits " +
           std::to_string(c.settings.rule.residue_bits) + ", chunks of " +
           std::to_string(c.settings.chunk_bytes) + ", skew " + std::to_string(c.skew) +
           (c.settings.kind == DigestKind::published ? ", published" : "");
}
Case some_case(Random& random, std::size_t largest_bytes) {
    Case c;
    constexpr DType floats[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
    c.scalar = random() % 2 == 0 ? floats[random() % 4] : kScalars[random() % std::size(kScalars)];
    c.settings.kind = random() % 8 == 0 ? DigestKind::published : DigestKind::linear;
    c.settings.tolerance = some_tolerance(random);
    if (c.settings.kind == DigestKind::published) c.settings.tolerance.rtol = 0;
    constexpr unsigned bits[] = {0, 2, 4};
    if (c.settings.kind == DigestKind::linear)
        c.settings.rule = random() % 2 == 0 ? *cell_rule(c.settings.tolerance, bits[random() % 3])
                                            : *cell_rule(c.settings.tolerance, bits[random() % 3], c.scalar);
    c.settings.chunk_bytes = 4096U << random() % 9;
    const std::size_t size = item_bytes(c.scalar);
    const std::size_t most = largest_bytes / size;
    const std::size_t n = random() % 4 == 0 ? random() % 700 : random() % most;
    c.bytes = some_values(c.scalar, n, random);
    c.skew = random() % 4 == 0 ? size * (random() % (16 / size)) : 0;
    return c;
}

// All cases in one call, as fields of one batch.
void check(int device, const std::vector<Case>& cases) {
    const DeviceDigestKernels* kernels = device_digest_kernels();
    ASSERT_NE(kernels, nullptr);
    struct Place {
        OnDevice data, leaves, fine, residues, counts;
    };
    std::vector<Place> places;
    std::vector<DeviceDigestItem> items;
    std::vector<Expected> wanted;
    for (const Case& c : cases) {
        wanted.push_back(expected(c.settings, c.scalar, c.bytes));
        const Expected& e = wanted.back();
        const std::size_t words = c.settings.kind == DigestKind::published ? 2 : 1;
        places.push_back({OnDevice(device, std::span<const std::byte>(c.bytes), c.skew),
                          OnDevice(device, e.digests.size() * words * 8),
                          OnDevice(device, e.digests.size() * 8), OnDevice(device, e.residues.size()),
                          OnDevice(device, sizeof(ElementCounts))});
        Place& p = places.back();
        const ElementCounts zero;
        p.counts.put(&zero, sizeof zero);
        DeviceDigestItem item;
        item.data = p.data.data();
        item.scalars = c.bytes.size() / item_bytes(c.scalar);
        item.scalar = c.scalar;
        item.settings = c.settings;
        item.leaves = p.leaves.as<std::uint64_t>();
        item.fine = c.settings.kind == DigestKind::published ? nullptr : p.fine.as<std::uint64_t>();
        item.residues = e.residues.empty() ? nullptr : p.residues.data();
        item.counts = p.counts.as<ElementCounts>();
        items.push_back(item);
    }
    std::size_t device_bytes = 0;
    std::size_t host_bytes = 0;
    kernels->scratch(items.data(), items.size(), &device_bytes, &host_bytes);
    DeviceMemory scratch;
    DeviceMemory host_scratch;
    ASSERT_TRUE(scratch.reserve(device, device_bytes).ok());
    ASSERT_TRUE(host_scratch.reserve(kHostMemory, host_bytes).ok());
    auto stream = DeviceStream::create(device);
    ASSERT_TRUE(stream.ok());
    const DeviceStatus status = kernels->digest(device, items.data(), items.size(), scratch.data(),
                                                host_scratch.data(), stream->get());
    ASSERT_FALSE(status.failed) << status.text;
    const auto done = stream->wait();
    ASSERT_TRUE(done.ok()) << done.error().message;
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const Case& c = cases[i];
        const Expected& e = wanted[i];
        const auto leaves = places[i].leaves.values<std::uint64_t>();
        const auto fine = places[i].fine.values<std::uint64_t>();
        for (std::size_t chunk = 0; chunk < e.digests.size(); ++chunk) {
            if (c.settings.kind == DigestKind::published) {
                ASSERT_EQ(leaves[2 * chunk], e.digests[chunk].fine) << describe(c) << ", chunk " << chunk;
                ASSERT_EQ(leaves[2 * chunk + 1], e.digests[chunk].coarse)
                    << describe(c) << ", chunk " << chunk;
                continue;
            }
            ASSERT_EQ(fine[chunk], e.digests[chunk].fine)
                << describe(c) << ", fine digest of chunk " << chunk;
            ASSERT_EQ(leaves[chunk], e.digests[chunk].coarse)
                << describe(c) << ", coarse digest of chunk " << chunk;
        }
        const auto residues = places[i].residues.values<std::byte>();
        for (std::size_t b = 0; b < e.residues.size(); ++b)
            ASSERT_EQ(residues[b], e.residues[b]) << describe(c) << ", byte of residues " << b;
        const auto counts = places[i].counts.values<ElementCounts>();
        if (c.settings.kind == DigestKind::linear) {
            EXPECT_EQ(counts[0].nans, e.counts.nans) << describe(c);
            EXPECT_EQ(counts[0].tokens, e.counts.tokens) << describe(c);
        }
    }
}

TEST(DeviceDigest, EqualsPortableFieldByField) {
    TWR_TEST_DEVICE(device);
    Random random(1);
    for (int round = 0; round < test_rounds(150); ++round)
        check(device, {some_case(random, 300000)});
}

TEST(DeviceDigest, EqualsPortableInBatches) {
    TWR_TEST_DEVICE(device);
    Random random(2);
    for (int round = 0; round < test_rounds(6); ++round) {
        std::vector<Case> cases;
        for (int i = 0; i < 60; ++i)
            cases.push_back(some_case(random, 200000));
        check(device, cases);
    }
}

TEST(DeviceDigest, EveryDTypeChunkAndResidueWidth) {
    TWR_TEST_DEVICE(device);
    Random random(3);
    for (const DType scalar : kScalars) {
        std::vector<Case> cases;
        for (std::uint32_t chunk = 4096; chunk <= 1U << 20; chunk *= (test_rounds(2) == 1 ? 16 : 2)) {
            for (const unsigned bits : {0U, 2U, 4U}) {
                Case c;
                c.scalar = scalar;
                c.settings.tolerance = {0.37, bits == 2 ? 1e-4 : 0};
                c.settings.rule = *cell_rule(c.settings.tolerance, bits);
                c.settings.chunk_bytes = chunk;
                c.bytes = some_values(scalar, (chunk * 2 + 12345) / item_bytes(scalar), random);
                c.skew = bits == 4 ? item_bytes(scalar) % 16 : 0;
                cases.push_back(std::move(c));
            }
        }
        check(device, cases);
    }
}

// Every value that 16 bits can be, alone among zeros and among its neighbours: tokens of those that are mixed in the loop, and of
// those that are not.
TEST(DeviceDigest, ExactOfEveryHalf) {
    TWR_TEST_DEVICE(device);
    std::vector<Case> cases;
    for (const DType scalar : {DType::f16, DType::bf16}) {
        for (const auto& [finite, by_bits] : {std::pair(true, false), std::pair(false, false),
                                              std::pair(true, true), std::pair(false, true)}) {
            Case c;
            c.scalar = scalar;
            c.settings.rule = by_bits ? *cell_rule({0, 0}, 0, scalar) : *cell_rule({0, 0}, 0);
            const std::uint32_t exponent = scalar == DType::f16 ? 0x7C00 : 0x7F80;
            for (std::uint32_t raw = 0; raw < 0x10000; ++raw) {
                if (finite && (raw & exponent) == exponent) continue;
                for (const std::uint32_t one : {raw, finite ? raw : 0U})
                    for (int byte = 0; byte < 2; ++byte)
                        c.bytes.push_back(static_cast<std::byte>(one >> 8 * byte));
            }
            c.skew = 0;
            cases.push_back(c);
        }
    }
    check(device, cases);
}

// Relative tolerances of all 16-bit values, from origins of keys that are so small that every value counts to such that hide all
// values.
TEST(DeviceDigest, RelativeOfEveryHalf) {
    TWR_TEST_DEVICE(device);
    Random random(6);
    for (const double rtol : {0x1p-4, 0x1p-7, 1e-3, 1e-6, 0x1p-30, 0x1p-45}) {
        std::vector<Case> cases;
        for (const double origin : {0.0, 0x1p-100, 0x1.fffffffffffffp-71, 0x1p-70, 0x1.8p-70, 0x1p-60, 1e-5,
                                    1.0, 1.37, 0x1p40, 0x1.fffffffffffffp63, 0x1p64, 0x1p100, 0x1p127}) {
            for (const DType scalar : {DType::f16, DType::bf16}) {
                for (const unsigned bits : {0U, 2U, 4U}) {
                    Case c;
                    c.scalar = scalar;
                    c.settings.tolerance = {origin * rtol, rtol};
                    c.settings.rule = *cell_rule(c.settings.tolerance, bits);
                    if (c.settings.rule.kind != CellKind::relative) continue;
                    // Finite values alone first, then all.
                    const std::uint32_t exponent = scalar == DType::f16 ? 0x7C00 : 0x7F80;
                    for (const bool finite : {true, false}) {
                        std::vector<std::uint16_t> values;
                        for (std::uint32_t raw = 0; raw < 0x10000; ++raw) {
                            if (!finite || (raw & exponent) != exponent)
                                values.push_back(static_cast<std::uint16_t>(raw));
                        }
                        std::shuffle(values.begin(), values.end(), random);
                        const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
                        c.bytes.insert(c.bytes.end(), bytes, bytes + values.size() * 2);
                        c.bytes.resize(divide_up(c.bytes.size(), kBlockBytes) * kBlockBytes);
                    }
                    c.skew = 0;
                    cases.push_back(c);
                }
            }
        }
        ASSERT_GT(cases.size(), 30U);
        check(device, cases);
        if (HasFatalFailure()) return;
    }
}

// Words of bits: integers under a tolerance that makes each its own cell. In blocks that are full and not, aligned and not, of all
// sizes of chunks, beside fields of other rules.
TEST(DeviceDigest, Words) {
    TWR_TEST_DEVICE(device);
    Random random(5);
    for (int round = 0; round < test_rounds(30); ++round) {
        std::vector<Case> cases;
        for (const DType scalar : {DType::i8, DType::i16, DType::i32, DType::u8, DType::u16, DType::u32,
                                   DType::boolean, DType::f32}) {
            Case c;
            c.scalar = scalar;
            c.settings.tolerance = {1, 0};
            c.settings.rule = *cell_rule(c.settings.tolerance, 0);
            if (round % 2 == 0) c.settings.rule = *cell_rule({0, 0}, 0, scalar);
            c.settings.chunk_bytes = 4096U << random() % 9;
            const std::size_t size = item_bytes(scalar);
            c.bytes =
                some_values(scalar, random() % 4 == 0 ? random() % 5000 : random() % (300000 / size), random);
            if (random() % 4 == 0) std::fill(c.bytes.begin(), c.bytes.end(), std::byte{0x80});
            c.skew = random() % 4 == 0 ? size * (random() % (16 / size)) : 0;
            cases.push_back(std::move(c));
        }
        check(device, cases);
    }
}

// More words than thread blocks of the chip take at once: they go another way than few.
TEST(DeviceDigest, ManyWords) {
    TWR_TEST_DEVICE(device);
    Random random(6);
    for (const DType scalar : {DType::i8, DType::i16, DType::i32, DType::u8, DType::u16, DType::u32}) {
        std::vector<Case> cases;
        for (const std::size_t bytes : {std::size_t{70'000'000}, std::size_t{3'200}, std::size_t{65'536}}) {
            Case c;
            c.scalar = scalar;
            c.settings.tolerance = {1, 0};
            c.settings.rule = *cell_rule(c.settings.tolerance, 0);
            c.settings.chunk_bytes = 65'536;
            c.bytes = some_values(scalar, bytes / item_bytes(scalar), random);
            c.skew = 0;
            cases.push_back(std::move(c));
        }
        check(device, cases);
    }
}

// Numbers by their own bits, among them many NaNs and zeros of both signs: full and other blocks, aligned and not, all sizes of
// chunks.
TEST(DeviceDigest, NumbersByTheirBits) {
    TWR_TEST_DEVICE(device);
    Random random(7);
    for (int round = 0; round < test_rounds(30); ++round) {
        std::vector<Case> cases;
        for (const DType scalar : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i64, DType::u64}) {
            Case c;
            c.scalar = scalar;
            c.settings.rule = *cell_rule({0, 0}, 0, scalar);
            ASSERT_EQ(c.settings.rule.kind, item_bytes(scalar) == 8 ? CellKind::words : CellKind::binary32);
            c.settings.chunk_bytes = 4096U << random() % 9;
            const std::size_t size = item_bytes(scalar);
            c.bytes =
                some_values(scalar, random() % 4 == 0 ? random() % 5000 : random() % (300000 / size), random);
            for (std::size_t at = 0; at + size <= c.bytes.size() && round % 3 == 0; at += size) {
                // Any bits, NaN, or a zero.
                const auto fill = static_cast<std::byte>(random() % 4 == 0 ? 0xFF : 0);
                for (std::size_t k = 0; k < size; ++k)
                    c.bytes[at + k] = random() % 2 == 0 ? fill : static_cast<std::byte>(random());
                if (fill == std::byte{0} && random() % 2 == 0) c.bytes[at + size - 1] = std::byte{0x80};
            }
            c.skew = random() % 4 == 0 ? size * (random() % (16 / size)) : 0;
            cases.push_back(std::move(c));
        }
        check(device, cases);
    }
}

// Values without a cell, as masks have them: NaN and one or two fill values in runs of any length, among noise and values that are
// far each in its own way.
TEST(DeviceDigest, RegionsOfOneValue) {
    TWR_TEST_DEVICE(device);
    Random random(8);
    for (int round = 0; round < test_rounds(20); ++round) {
        std::vector<Case> cases;
        for (const DType scalar : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::u64}) {
            for (const unsigned bits : {0U, 2U, 4U}) {
                Case c;
                c.scalar = scalar;
                constexpr Tolerance tolerances[] = {{1e-3, 0}, {1e-3, 1e-3}, {1e-30, 0}, {0, 0}};
                c.settings.tolerance = tolerances[random() % 4];
                c.settings.rule = *cell_rule(c.settings.tolerance, bits);
                c.settings.chunk_bytes = 4096U << random() % 9;
                const std::size_t size = item_bytes(scalar);
                c.bytes = some_values(scalar, random() % (300000 / size), random);
                std::uint64_t fills[3] = {random(), random(), random()};
                if (scalar == DType::f64) fills[0] = 0x4415AF1D78B58C40U, fills[1] = 0xFFF8000000000001U;
                if (scalar == DType::f32) fills[0] = 0x60AD78ECU, fills[1] = 0x7FC00001U;
                if (scalar == DType::bf16) fills[0] = 0x60ADU, fills[1] = 0x7FC1U;
                if (scalar == DType::f16) fills[0] = 0xFC00U, fills[1] = 0x7E01U;
                const std::uint64_t longest = std::uint64_t{1} << random() % 15;
                std::uint64_t left = 0;
                std::uint64_t fill = 0;
                bool filled = false;
                for (std::size_t at = 0; at + size <= c.bytes.size(); at += size) {
                    if (left-- == 0) {
                        left = random() % longest;
                        filled = random() % 2 == 0;
                        fill = fills[random() % (round % 2 == 0 ? 2 : 3)];
                    }
                    if (!filled) continue;
                    for (std::size_t k = 0; k < size; ++k)
                        c.bytes[at + k] = static_cast<std::byte>(fill >> 8 * k);
                }
                c.skew = random() % 4 == 0 ? size * (random() % (16 / size)) : 0;
                cases.push_back(std::move(c));
            }
        }
        check(device, cases);
    }
}

TEST(DeviceDigest, AllTokensAndAllNaN) {
    TWR_TEST_DEVICE(device);
    std::vector<Case> cases;
    for (const DType scalar : {DType::f32, DType::f64, DType::bf16}) {
        for (const Tolerance tolerance :
             {Tolerance{0, 0}, Tolerance{1e-3, 0}, Tolerance{1e-3, 1e-3}, Tolerance{1e-320, 0}}) {
            Case c;
            c.scalar = scalar;
            c.settings.tolerance = tolerance;
            c.settings.rule = *cell_rule(tolerance, 4, scalar);
            c.bytes.assign(70000 * item_bytes(scalar), std::byte{0xFF});
            c.skew = 0;
            cases.push_back(c);
        }
    }
    check(device, cases);
}

// The largest finite magnitude of the sample that metadata records: one in 1021 of each 1 MiB.
TEST(DeviceDigest, SampleOfMagnitudes) {
    TWR_TEST_DEVICE(device);
    Random random(4);
    for (const DType scalar : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::u8}) {
        const std::size_t size = item_bytes(scalar);
        const std::size_t n = (5U << 20) / size / 2;
        const auto bytes = some_values(scalar, n, random);
        const std::size_t slice = (1U << 20) / size;
        double largest = 0;
        for (std::size_t begin = 0; begin < n; begin += slice) {
            for (std::size_t i = begin; i < std::min(begin + slice, n); i += 1021) {
                alignas(8) std::byte one[8];
                const void* at = load(dense_view(scalar, bytes.data()), i, 1, one);
                double x = 0;
                float f = 0;
                if (compute_type(scalar) == ComputeType::f32) {
                    std::memcpy(&f, at, 4);
                    x = static_cast<double>(f);
                } else if (compute_type(scalar) == ComputeType::f64) {
                    std::memcpy(&x, at, 8);
                }
                if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
            }
        }
        OnDevice data(device, std::span<const std::byte>(bytes));
        OnDevice leaves(device, divide_up(bytes.size(), 4096) * 8);
        OnDevice result(device, 8);
        const std::uint64_t zero = 0;
        result.put(&zero, 8);
        DeviceDigestItem item;
        item.data = data.data();
        item.scalars = n;
        item.scalar = scalar;
        item.settings.tolerance = {1, 0};
        item.settings.rule = *cell_rule({1, 0}, 0);
        item.leaves = leaves.as<std::uint64_t>();
        item.largest = result.as<std::uint64_t>();
        std::size_t device_bytes = 0;
        std::size_t host_bytes = 0;
        device_digest_kernels()->scratch(&item, 1, &device_bytes, &host_bytes);
        DeviceMemory scratch;
        DeviceMemory host_scratch;
        ASSERT_TRUE(scratch.reserve(device, device_bytes).ok());
        ASSERT_TRUE(host_scratch.reserve(kHostMemory, host_bytes).ok());
        ASSERT_FALSE(device_digest_kernels()
                         ->digest(device, &item, 1, scratch.data(), host_scratch.data(), nullptr)
                         .failed);
        EXPECT_EQ(std::bit_cast<double>(result.values<std::uint64_t>()[0]), largest) << dtype_name(scalar);
    }
}

// Sketches of two runs that differ by a few cells, and by many, against check_sketch().
TEST(DeviceSketchCheck, EqualsPortable) {
    TWR_TEST_DEVICE(device);
    Random random(5);
    for (int round = 0; round < test_rounds(40); ++round) {
        const DType scalar = kScalars[random() % 4];
        const std::size_t size = item_bytes(scalar);
        DigestSettings settings;
        settings.tolerance = {0.01 * static_cast<double>(1 + random() % 100), 0};
        settings.rule = *cell_rule(settings.tolerance, random() % 2 == 0 ? 4 : 2);
        settings.chunk_bytes = 4096U << random() % 6;
        const std::size_t n = 1 + random() % (400000 / size);
        auto a = some_values(scalar, n, random);
        auto b = a;
        // Values of the second run lie up to a few cells off.
        const double reach = settings.tolerance.atol * (random() % 3 == 0 ? 2.0 : 0.7);
        for (std::size_t i = 0; i < n; ++i) {
            const double noise = reach * (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5);
            if (scalar == DType::f32) {
                float x = 0;
                std::memcpy(&x, a.data() + i * 4, 4);
                x += static_cast<float>(noise);
                std::memcpy(b.data() + i * 4, &x, 4);
            } else if (scalar == DType::f64) {
                double x = 0;
                std::memcpy(&x, a.data() + i * 8, 8);
                x += noise;
                std::memcpy(b.data() + i * 8, &x, 8);
            }
        }
        if (random() % 2 == 0) b[random() % b.size()] ^= std::byte{0x40};
        const Expected ea = expected(settings, scalar, a);
        const Expected eb = expected(settings, scalar, b);
        const ChunkShape shape = chunk_shape(scalar, settings.chunk_bytes, settings.rule.residue_bits);
        std::vector<std::uint64_t> fine_a;
        std::vector<std::uint64_t> fine_b;
        for (std::size_t c = 0; c < ea.digests.size(); ++c) {
            fine_a.push_back(ea.digests[c].fine);
            fine_b.push_back(eb.digests[c].fine);
        }
        std::vector<std::uint32_t> chosen;
        for (std::uint32_t c = 0; c < fine_a.size(); ++c) {
            if (random() % 3 != 0) chosen.push_back(c);
        }
        const bool all = round % 2 == 0;
        if (all) {
            chosen.clear();
            for (std::uint32_t c = 0; c < fine_a.size(); ++c)
                chosen.push_back(c);
        }
        std::vector<std::uint8_t> proven;
        std::array<std::uint64_t, 8> counts{};
        for (const std::uint32_t c : chosen) {
            const std::size_t in_chunk =
                std::min<std::size_t>(shape.chunk_scalars, n - c * shape.chunk_scalars);
            const SketchVerdict v = check_sketch(kPortableDigest, shape, in_chunk, settings.rule.residue_bits,
                                                 settings.rule.widest, fine_a[c], fine_b[c],
                                                 ea.residues.data() + c * shape.residue_bytes_per_chunk,
                                                 eb.residues.data() + c * shape.residue_bytes_per_chunk);
            proven.push_back(v.proven ? 1 : 0);
            for (std::size_t i = 0; v.proven && i < 8; ++i)
                counts[i] += v.counts[i];
        }
        const OnDevice on_fine_a(device, std::span<const std::uint64_t>(fine_a));
        const OnDevice on_fine_b(device, std::span<const std::uint64_t>(fine_b));
        const OnDevice on_residues_a(device, std::span<const std::byte>(ea.residues));
        const OnDevice on_residues_b(device, std::span<const std::byte>(eb.residues));
        const OnDevice on_chosen(device, std::span<const std::uint32_t>(chosen));
        OnDevice on_counts(device, sizeof counts);
        const std::array<std::uint64_t, 8> zeros{};
        on_counts.put(zeros.data(), sizeof zeros);
        const OnDevice on_proven(device, chosen.size());
        DeviceSketchItem item;
        item.fine_a = on_fine_a.as<std::uint64_t>();
        item.fine_b = on_fine_b.as<std::uint64_t>();
        item.residues_a = on_residues_a.data();
        item.residues_b = on_residues_b.data();
        item.scalars = n;
        item.scalar = scalar;
        item.chunk_bytes = settings.chunk_bytes;
        item.residue_bits = settings.rule.residue_bits;
        item.widest = settings.rule.widest;
        item.chunks = all ? nullptr : on_chosen.as<std::uint32_t>();
        item.count = chosen.size();
        item.proven = on_proven.as<std::uint8_t>();
        item.counts = on_counts.as<std::uint64_t>();
        const DeviceStatus status = device_digest_kernels()->sketch(device, item, nullptr);
        ASSERT_FALSE(status.failed) << status.text;
        EXPECT_EQ(on_proven.values<std::uint8_t>(), proven) << "round " << round;
        const auto got = on_counts.values<std::uint64_t>();
        EXPECT_TRUE(std::equal(got.begin(), got.end(), counts.begin())) << "round " << round;
    }
}

}  // namespace
}  // namespace twinrun
