// Comparison of sketches in device memory, many pairs at a time.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "device/device_workspace.hpp"
#include "sketch/device_batch.hpp"
#include "sketch/device_memory.hpp"
#include "sketch/device_sketch.hpp"
#include "sketch/proof.hpp"

namespace twinrun {

using namespace device_batch;

namespace {

// Pairs that wait together: of as much device memory as their lists of chunks may take, and of so
// many.
constexpr std::size_t kGroupBytes = std::size_t{64} << 20;
constexpr std::size_t kGroupPairs = 8192;

// Of a pair, set by kernels: how many chunks its trees leave, and scalars of proven ones by |c|.
struct Numbers {
    std::uint64_t flagged = 0;
    std::array<std::uint64_t, 8> by_cells{};
};

}  // namespace

// Pairs of one device, in three turns: roots, trees of those whose roots differ, residues of what
// the trees leave. Each turn waits once.
class SketchPairs {
   public:
    explicit SketchPairs(const Tables& tables) : tables_(tables) {}

    // Error: mismatch.
    Result<> add(std::size_t number, const DeviceSketch& a, const DeviceSketch& b,
                 const DifferenceRule& rule) {
        TWR_TRY(const ChunkProof proof, ChunkProof::between(a.field_, b.field_, rule));
        if (a.device() != b.device()) {
            return Error{ErrorCode::mismatch,
                         "the sketches lie on different devices: upload one to the other's"};
        }
        if (a.field_.chunks() >> 32 != 0)
            return Error{ErrorCode::unsupported, "a field of more than 2^32 chunks: use larger ones"};
        pairs_.push_back({number, &a, &b, proof, digests_decide(a.field_, rule)});
        list_bytes_ +=
            device_aligned(a.field_.chunks() * sizeof(std::uint32_t)) + device_aligned(a.field_.chunks());
        return success();
    }
    [[nodiscard]] bool is_full() const { return pairs_.size() >= kGroupPairs || list_bytes_ >= kGroupBytes; }
    [[nodiscard]] bool is_empty() const { return pairs_.empty(); }

    // found: of all pairs of the call, by their numbers.
    Result<> finish(std::vector<SketchComparison>& found) {
        list_bytes_ = 0;
        TWR_TRY(auto workspace, DeviceWorkspaces::builds().lease(pairs_.front().a->device()));
        for (const Pair& pair : pairs_) {
            SketchComparison& of = found[pair.number];
            of.decided = pair.decided;
            of.chunks = pair.chunks();
            of.by_tree = pair.a->field_.scalars();
        }
        std::erase_if(pairs_, [](const Pair& pair) { return pair.chunks() == 0; });
        TWR_CHECK(leave_equal_roots(*workspace));
        if (pairs_.empty()) return success();
        TWR_CHECK(walk(*workspace));
        TWR_CHECK(check_residues(*workspace, found));
        pairs_.clear();
        return success();
    }

   private:
    struct Pair {
        std::size_t number;
        const DeviceSketch* a;
        const DeviceSketch* b;
        ChunkProof proof;
        bool decided;
        std::size_t flagged_at = 0;  // in device memory
        std::size_t proven_at = 0;
        std::uint64_t flagged = 0;
        bool is_equal = false;
        [[nodiscard]] std::uint64_t chunks() const { return a->field_.chunks(); }
    };
    template <class T>
    static const T* address(const DeviceSketch& sketch, std::size_t at) {
        return reinterpret_cast<const T*>(sketch.memory_->workspace->device_memory() + at);
    }
    Result<> copy(DeviceWorkspace& workspace, void* to, const void* from, std::size_t bytes) const {
        return to_result(
            tables_.runtime->copy(workspace.device(), to, from, bytes, workspace.stream().get()));
    }

    // Pairs whose roots are equal are done.
    Result<> leave_equal_roots(DeviceWorkspace& workspace) {
        std::vector<DeviceRoots> roots;
        for (const Pair& pair : pairs_) {
            if (!pair.proof.by_tree()) continue;
            roots.push_back({address<std::uint64_t>(*pair.a, pair.a->tree_),
                             address<std::uint64_t>(*pair.b, pair.b->tree_),
                             node_words(pair.a->field_.settings.kind)});
        }
        if (roots.empty()) return success();
        const std::size_t bytes = roots.size() * sizeof(DeviceRoots);
        const std::size_t equal_at = device_aligned(bytes);
        TWR_CHECK(workspace.reserve_device(equal_at + roots.size()));
        TWR_CHECK(workspace.reserve_host(equal_at + roots.size()));
        std::memcpy(workspace.host_memory(), roots.data(), bytes);
        auto* const equal = reinterpret_cast<std::uint8_t*>(workspace.device_memory() + equal_at);
        TWR_CHECK(copy(workspace, workspace.device_memory(), workspace.host_memory(), bytes));
        TWR_CHECK(to_result(tables_.tree->equal_roots(
            workspace.device(), reinterpret_cast<const DeviceRoots*>(workspace.device_memory()), roots.size(),
            equal, workspace.stream().get())));
        TWR_CHECK(copy(workspace, workspace.host_memory() + equal_at, equal, roots.size()));
        TWR_CHECK(workspace.stream().wait_soon());
        const auto* is_equal = reinterpret_cast<const std::uint8_t*>(workspace.host_memory() + equal_at);
        for (Pair& pair : pairs_)
            pair.is_equal = pair.proof.by_tree() && *is_equal++ != 0;
        std::erase_if(pairs_, [](const Pair& pair) { return pair.is_equal; });
        return success();
    }

    // Chunks that the trees leave; without trees all of them.
    Result<> walk(DeviceWorkspace& workspace) {
        const std::size_t numbers_bytes = pairs_.size() * sizeof(Numbers);
        std::size_t end = device_aligned(numbers_bytes);
        std::size_t scratch = 0;
        for (Pair& pair : pairs_) {
            pair.flagged_at = std::exchange(end, end + device_aligned(pair.chunks() * sizeof(std::uint32_t)));
            pair.proven_at = std::exchange(end, end + device_aligned(pair.chunks()));
            if (pair.proof.by_tree()) scratch = std::max(scratch, tables_.tree->walk_scratch(pair.chunks()));
        }
        TWR_CHECK(workspace.reserve_device(end + scratch));
        TWR_CHECK(workspace.reserve_host(numbers_bytes));
        std::byte* const memory = workspace.device_memory();
        const StreamHandle stream = workspace.stream().get();
        TWR_CHECK(to_result(tables_.runtime->fill(workspace.device(), memory, 0, numbers_bytes, stream)));
        bool walks = false;
        for (std::size_t i = 0; i < pairs_.size(); ++i) {
            Pair& pair = pairs_[i];
            pair.flagged = pair.chunks();
            if (!pair.proof.by_tree()) continue;
            walks = true;
            TWR_CHECK(to_result(tables_.tree->walk(
                workspace.device(), address<std::uint64_t>(*pair.a, pair.a->tree_),
                address<std::uint64_t>(*pair.b, pair.b->tree_), pair.chunks(), pair.a->field_.settings.kind,
                reinterpret_cast<std::uint32_t*>(memory + pair.flagged_at),
                &reinterpret_cast<Numbers*>(memory)[i].flagged, memory + end, stream)));
        }
        if (!walks) return success();
        TWR_CHECK(copy(workspace, workspace.host_memory(), memory, numbers_bytes));
        TWR_CHECK(workspace.stream().wait_soon());
        for (std::size_t i = 0; i < pairs_.size(); ++i) {
            Pair& pair = pairs_[i];
            if (!pair.proof.by_tree()) continue;
            pair.flagged = reinterpret_cast<const Numbers*>(workspace.host_memory())[i].flagged;
            if (pair.flagged > pair.chunks())
                return Error{ErrorCode::internal, "more chunks differ than there are"};
        }
        return success();
    }

    Result<> check_residues(DeviceWorkspace& workspace, std::vector<SketchComparison>& found) {
        // On the host: numbers, then of each pair its flagged chunks and which are proven.
        const std::size_t numbers_bytes = pairs_.size() * sizeof(Numbers);
        std::size_t end = device_aligned(numbers_bytes);
        for (const Pair& pair : pairs_)
            end += device_aligned(pair.flagged * sizeof(std::uint32_t)) + device_aligned(pair.flagged);
        TWR_CHECK(workspace.reserve_host(end));
        std::byte* const memory = workspace.device_memory();
        std::byte* const host = workspace.host_memory();
        const auto each_list = [&](auto use) -> Result<> {
            std::size_t at = device_aligned(numbers_bytes);
            for (std::size_t i = 0; i < pairs_.size(); ++i) {
                std::byte* const flagged = host + at;
                at += device_aligned(pairs_[i].flagged * sizeof(std::uint32_t));
                std::byte* const proven = host + at;
                at += device_aligned(pairs_[i].flagged);
                if (pairs_[i].flagged != 0) TWR_CHECK(use(pairs_[i], i, flagged, proven));
            }
            return success();
        };
        const auto start = [&](const Pair& pair, std::size_t i, std::byte* flagged,
                               std::byte* proven) -> Result<> {
            if (pair.proof.by_tree()) {
                TWR_CHECK(
                    copy(workspace, flagged, memory + pair.flagged_at, pair.flagged * sizeof(std::uint32_t)));
            }
            if (!pair.proof.by_residues()) return success();
            DeviceSketchItem item = pair.proof.device_item({0, pair.chunks()});
            item.fine_a = address<std::uint64_t>(*pair.a, pair.a->fine_);
            item.fine_b = address<std::uint64_t>(*pair.b, pair.b->fine_);
            item.residues_a = address<std::byte>(*pair.a, pair.a->residues_);
            item.residues_b = address<std::byte>(*pair.b, pair.b->residues_);
            item.chunks = pair.proof.by_tree()
                              ? reinterpret_cast<const std::uint32_t*>(memory + pair.flagged_at)
                              : nullptr;
            item.count = pair.flagged;
            item.proven = reinterpret_cast<std::uint8_t*>(memory + pair.proven_at);
            item.counts = reinterpret_cast<Numbers*>(memory)[i].by_cells.data();
            TWR_CHECK(to_result(tables_.digest->sketch(workspace.device(), item, workspace.stream().get())));
            return copy(workspace, proven, memory + pair.proven_at, pair.flagged);
        };
        TWR_CHECK(each_list(start));
        TWR_CHECK(copy(workspace, host, memory, numbers_bytes));
        TWR_CHECK(workspace.stream().wait_soon());
        return each_list([&](const Pair& pair, std::size_t i, const std::byte* flagged,
                             const std::byte* proven) -> Result<> {
            SketchComparison& of = found[pair.number];
            of.flagged.resize(pair.flagged);
            if (pair.proof.by_tree()) {
                std::memcpy(of.flagged.data(), flagged, pair.flagged * sizeof(std::uint32_t));
            } else {
                for (std::uint64_t c = 0; c < pair.flagged; ++c)
                    of.flagged[c] = static_cast<std::uint32_t>(c);
            }
            for (const std::uint32_t chunk : of.flagged)
                of.by_tree -= pair.proof.scalars(chunk);
            if (!pair.proof.by_residues()) {
                of.open = of.flagged;
                return success();
            }
            of.by_cells = reinterpret_cast<const Numbers*>(host)[i].by_cells;
            for (std::uint64_t c = 0; c < pair.flagged; ++c) {
                if (proven[c] == std::byte{0}) of.open.push_back(of.flagged[c]);
            }
            return success();
        });
    }

    const Tables tables_;
    std::vector<Pair> pairs_;
    std::size_t list_bytes_ = 0;  // what their lists of chunks may take
};

Result<std::vector<SketchComparison>> DeviceSketch::compare(std::span<const DeviceSketch* const> a,
                                                            std::span<const DeviceSketch* const> b,
                                                            std::span<const DifferenceRule> rules) try {
    if (a.size() != b.size() || a.size() != rules.size())
        return Error{ErrorCode::invalid_argument, "two sketches and a rule for each field"};
    TWR_TRY(const Tables all, tables());
    std::vector<SketchComparison> found(a.size());
    std::map<int, SketchPairs> under_way;  // by device
    for (std::size_t i = 0; i < a.size(); ++i) {
        SketchPairs& pairs = under_way.try_emplace(a[i]->device(), all).first->second;
        if (Result<> added = pairs.add(i, *a[i], *b[i], rules[i]); !added)
            return std::move(added).error().at("field '" + a[i]->field_.name + "'");
        if (pairs.is_full()) TWR_CHECK(pairs.finish(found));
    }
    for (auto& [device, pairs] : under_way) {
        if (!pairs.is_empty()) TWR_CHECK(pairs.finish(found));
    }
    return found;
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<SketchComparison> DeviceSketch::compare(const DeviceSketch& b, const DifferenceRule& rule) const try {
    TWR_TRY(const Tables all, tables());
    std::vector<SketchComparison> found(1);
    SketchPairs pairs(all);
    TWR_CHECK(pairs.add(0, *this, b, rule));
    TWR_CHECK(pairs.finish(found));
    return std::move(found.front());
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
