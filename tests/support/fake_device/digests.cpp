// Digests and sketches, by the portable kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "digest/values.hpp"
#include "support/fake_device/checks.hpp"
#include "support/fake_device/tables.hpp"
#include "tree/build.hpp"

namespace twinrun::fake {

namespace {

void raise_largest(const DeviceDigestItem& item, const ElementView& view) {
    const std::uint64_t slice = (1 << 20) / item_bytes(item.scalar);
    const ComputeType type = compute_type(item.scalar);
    for (std::uint64_t at = 0; at < item.scalars; at += slice) {
        for (std::uint64_t k = at; k < std::min(at + slice, item.scalars); k += 1021) {
            alignas(64) std::byte staging[64];
            const void* value = load(view, k, 1, staging);
            double x = 0;
            if (type == ComputeType::f32) {
                float f = 0;
                std::memcpy(&f, value, 4);
                x = static_cast<double>(f);
            } else if (type == ComputeType::f64) {
                std::memcpy(&x, value, 8);
            }
            x = std::fabs(x);
            if (!std::isfinite(x)) continue;
            std::uint64_t word = 0;
            std::memcpy(&word, &x, 8);
            *item.largest = std::max(*item.largest, word);
        }
    }
}

void digest_now(int device, const DeviceDigestItem& item) {
    if (item.scalars == 0) return;
    Digester digester(item.settings, item.scalar, Backend::portable);
    const ElementView view = dense_view(item.scalar, item.data);
    const std::size_t per_chunk = digester.shape().chunk_scalars;
    const std::size_t chunks = (item.scalars + per_chunk - 1) / per_chunk;
    const unsigned bits = item.settings.rule.residue_bits;
    const bool published = item.settings.kind == DigestKind::published;
    std::size_t residue_bytes = 0;
    if (item.residues != nullptr && bits != 0) {
        residue_bytes = item.scalars / per_chunk * digester.shape().residue_bytes_per_chunk +
                        chunk_residue_bytes(item.scalar, item.scalars % per_chunk, bits);
    }
    Checker checker(device, "digest");
    checker.memory(item.data, item.scalars * item_bytes(item.scalar), item_bytes(item.scalar), "its data");
    checker.memory(item.leaves, chunks * (published ? 16 : 8), 8, "its leaves");
    if (item.fine != nullptr) checker.memory(item.fine, chunks * 8, 8, "its fine digests");
    checker.memory(item.residues, residue_bytes, 1, "its residues");
    if (item.counts != nullptr) checker.memory(item.counts, sizeof *item.counts, 8, "its counts");
    if (item.largest != nullptr) checker.memory(item.largest, 8, 8, "its largest");
    if (!checker.ok()) return;
    std::vector<ChunkDigest> digests(chunks);
    std::vector<std::byte> residues(chunks * digester.shape().residue_bytes_per_chunk);
    ElementCounts counts;
    digester.chunks(view, 0, item.scalars, digests.data(), bits != 0 ? residues.data() : nullptr, &counts);
    for (std::size_t c = 0; c < digests.size(); ++c) {
        if (published) {
            item.leaves[2 * c] = digests[c].fine;
            item.leaves[2 * c + 1] = digests[c].coarse;
        } else {
            item.leaves[c] = digests[c].coarse;
            if (item.fine != nullptr) item.fine[c] = digests[c].fine;
        }
    }
    if (residue_bytes != 0) std::memcpy(item.residues, residues.data(), residue_bytes);
    if (item.counts != nullptr) item.counts->add(counts);
    if (item.largest != nullptr) raise_largest(item, view);
}

void digest_scratch(const DeviceDigestItem*, std::size_t n, std::size_t* device_bytes,
                    std::size_t* host_bytes) {
    *device_bytes = n * kScratch;
    *host_bytes = n * kScratch / 2;
}
DeviceStatus digest(int device, const DeviceDigestItem* items, std::size_t n, void* scratch,
                    void* host_scratch, StreamHandle stream) {
    FAKE_ENTER(kDigestCall, device);
    const Scratch area(scratch, n * kScratch, host_scratch, n * kScratch / 2);
    area.prepare();
    return push(device, stream, [=, all = std::vector<DeviceDigestItem>(items, items + n)] {
        Checker checker(device, "digest");
        area.check(checker);
        for (std::size_t i = 0; checker.ok() && i < all.size(); ++i)
            digest_now(device, all[i]);
    });
}

void sketch_now(int device, const DeviceSketchItem& item) {
    const ChunkShape shape = chunk_shape(item.scalar, item.chunk_bytes, item.residue_bits);
    const std::uint64_t chunks = (item.scalars + shape.chunk_scalars - 1) / shape.chunk_scalars;
    const std::size_t residue_bytes = item.scalars / shape.chunk_scalars * shape.residue_bytes_per_chunk;
    Checker checker(device, "sketch");
    checker.memory(item.fine_a, chunks * 8, 8, "a's fine digests");
    checker.memory(item.fine_b, chunks * 8, 8, "b's fine digests");
    checker.memory(item.residues_a, residue_bytes, 16, "a's residues");
    checker.memory(item.residues_b, residue_bytes, 16, "b's residues");
    if (item.chunks != nullptr) checker.memory(item.chunks, item.count * 4, 4, "its chunks");
    checker.memory(item.proven, item.count, 1, "its verdicts");
    checker.memory(item.counts, 64, 8, "its counts");
    if (!checker.ok()) return;
    for (std::uint64_t i = 0; i < item.count; ++i) {
        const std::uint64_t c = item.chunks == nullptr ? i : item.chunks[i];
        if (c >= chunks) return trouble(device, "sketch: a chunk that is not there");
        const auto n = static_cast<std::size_t>(
            std::min<std::uint64_t>(shape.chunk_scalars, item.scalars - c * shape.chunk_scalars));
        const std::size_t at = c * shape.residue_bytes_per_chunk;
        const SketchVerdict verdict =
            check_sketch(kPortableDigest, shape, n, item.residue_bits, item.widest, item.fine_a[c],
                         item.fine_b[c], item.residues_a + at, item.residues_b + at);
        item.proven[i] = verdict.proven ? 1 : 0;
        for (std::size_t k = 0; verdict.proven && k < 8; ++k)
            item.counts[k] += verdict.counts[k];
    }
}
DeviceStatus sketch(int device, const DeviceSketchItem& item, StreamHandle stream) {
    FAKE_ENTER(kSketch, device);
    return push(device, stream, [=] { sketch_now(device, item); });
}

// The words of an item, one after the other.
std::vector<std::byte> words_of(const DeviceRootItem& item, Checker& checker) {
    const std::size_t bytes = item.words * item_bytes(item.word);
    const auto* const data = static_cast<const std::byte*>(item.data);
    const DeviceRuns& runs = item.runs;
    const std::size_t run = runs.run_bytes != 0 ? runs.run_bytes : bytes;
    const std::size_t word = item_bytes(item.word);
    const std::size_t unit = runs.run_bytes != 0 && !runs.spread ? kRootRunUnit : word;
    // What lies side by side: a run, or one of its words.
    const std::size_t piece = runs.spread ? word : run;
    checker.require(run % piece == 0, "a run", "has a part of a word");
    std::vector<std::byte> words;
    words.reserve(bytes);
    for (std::size_t number = 0; number * run < bytes && checker.ok(); ++number) {
        std::size_t rest = number;
        const std::byte* at = data;
        for (int d = runs.dimensions; d-- > 0; rest /= runs.shape[d])
            at += static_cast<std::int64_t>(rest % runs.shape[d]) * runs.strides[d];
        for (std::size_t of_run = 0; of_run < run && checker.ok(); of_run += piece, at += runs.step) {
            checker.memory(at, piece, unit, "its data");
            if (checker.ok()) words.insert(words.end(), at, at + piece);
        }
    }
    checker.require(words.size() == bytes || !checker.ok(), "its runs", "have other words than it");
    return words;
}
void root_now(int device, const DeviceRootItem& item) {
    Checker checker(device, "roots");
    checker.require(item.words != 0, "an item", "has no word");
    const std::vector<std::byte> words = words_of(item, checker);
    checker.memory(item.sums, sizeof *item.sums, 8, "its sums");
    checker.memory_or_locked(item.root, sizeof *item.root, 8, "its root");
    if (!checker.ok()) return;
    const std::byte* const sums = reinterpret_cast<const std::byte*>(item.sums);
    checker.require(
        std::all_of(sums, sums + sizeof *item.sums, [](std::byte x) { return x == std::byte{0}; }),
        "its sums", "are not zeros");
    if (!checker.ok()) return;
    DigestSettings settings;
    settings.tolerance = {1, 0};
    settings.rule = cell_rule(settings.tolerance, 0).value();
    settings.chunk_bytes = kRootChunkBytes;
    Digester digester(settings, item.word, Backend::portable);
    const ChunkShape shape = digester.shape();
    std::vector<ChunkDigest> digests((item.words + shape.chunk_scalars - 1) / shape.chunk_scalars);
    ElementCounts counts;
    digester.chunks(dense_view(item.word, words.data()), 0, item.words, digests.data(), nullptr, &counts);
    std::vector<std::uint64_t> leaves;
    for (const ChunkDigest& digest : digests)
        leaves.push_back(digest.coarse);
    const std::uint64_t root = build_tree(DigestKind::linear, shape.blocks_per_chunk, leaves)[0];
    *item.root = {root & 0xFFFFFFFF, root >> 32};
}
DeviceStatus roots(int device, const DeviceRootItem* items, std::size_t n, StreamHandle stream) {
    FAKE_ENTER(kRoots, device);
    return push(device, stream, [=, all = std::vector<DeviceRootItem>(items, items + n)] {
        for (const DeviceRootItem& item : all)
            root_now(device, item);
    });
}

}  // namespace

const DeviceDigestKernels kDigest = {
    .scratch = digest_scratch, .digest = digest, .sketch = sketch, .roots = roots};

}  // namespace twinrun::fake
