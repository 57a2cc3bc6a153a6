#include "restore/block_pass.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/checked.hpp"
#include "platform/team_items.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kLeastStripe = std::uint64_t{64} << 10;
constexpr std::uint64_t kMostStripes = std::uint64_t{1} << 14;
constexpr std::size_t kZerosAtOnce = 32;
// Blocks that one thread takes behind each other: as many bytes as these at least, and so few that
// each thread takes several times.
constexpr std::uint64_t kLeastShare = std::uint64_t{1} << 20;
constexpr std::uint64_t kSharesEach = 8;

}  // namespace

// The output in stripes, each with a lock. XOR may come in any order, but not from two threads to
// one place at once.
struct BlockPass::Stripes {
    explicit Stripes(std::uint64_t bytes)
        : size(std::max(kLeastStripe, std::bit_ceil(divide_up(bytes, kMostStripes)))),
          locks(static_cast<std::size_t>(divide_up(bytes, size))) {}

    const std::uint64_t size;
    std::vector<std::mutex> locks;
};

// Calls put(begin, to, lock) for each stretch of the parts' places: its first byte in the block,
// and where it goes. With stripes each lies in one of them.
template <typename Put>
void BlockPass::each_stretch(Group parts, Stripes* stripes, Put put) const {
    for (const Part& part : parts) {
        const std::uint64_t bytes = part.repeat ? chunk_bytes_ : bytes_of(part);
        for (std::uint64_t i = 0; i < (part.repeat ? part.count : 1); ++i) {
            const std::uint64_t at = (part.to + i) * chunk_bytes_;
            for (std::uint64_t done = 0; done < bytes;) {
                std::uint64_t next = bytes;
                std::mutex* lock = nullptr;
                if (stripes != nullptr) {
                    const std::uint64_t stripe = (at + done) / stripes->size;
                    next = std::min(bytes, (stripe + 1) * stripes->size - at);
                    lock = &stripes->locks[static_cast<std::size_t>(stripe)];
                }
                put(part.first * chunk_bytes_ + done, std::span(to_ + at + done, next - done), lock);
                done = next;
            }
        }
    }
}

// By block, within each in the order in which they were found.
void BlockPass::sort() {
    const auto before = [](const Part& a, const Part& b) {
        return a.file != b.file ? a.file < b.file : a.block < b.block;
    };
    // They are sorted already, but where a chunk comes to several places.
    if (!std::is_sorted(parts_.begin(), parts_.end(), before))
        std::stable_sort(parts_.begin(), parts_.end(), before);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
        if (p == 0 || before(parts_[p - 1], parts_[p])) groups_.push_back(p);
    }
    groups_.push_back(parts_.size());
}

// Whether each chunk of a block comes to at most one place.
bool BlockPass::apart(Group parts) {
    std::uint64_t end = 0;
    return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
        const bool behind = !part.repeat && part.first >= end;
        end = part.first + part.count;
        return behind;
    });
}

// First zeros, and the blocks of which nothing is XORed, in any order, as no two of them have one
// place. Then the others. So nothing that comes as it is overwrites what was XORed already.
Result<> BlockPass::read(Team* team, std::span<ReadScratch> scratch, const char* no_memory) {
    sort();
    std::vector<std::size_t> plain;
    std::vector<std::size_t> mixed;
    std::uint64_t end = 0;     // of the output's bytes that something is XORed with
    std::uint64_t to_mix = 0;  // bytes of blocks
    for (std::size_t g = 0; g + 1 < groups_.size(); ++g) {
        const Group parts = group(g);
        const auto mixes = [](const Part& part) { return part.mix; };
        if (std::none_of(parts.begin(), parts.end(), mixes)) {
            plain.push_back(g);
            continue;
        }
        mixed.push_back(g);
        to_mix += block_bytes(parts);
        for (Part& part : parts) {
            // A part that comes as it is can be XORed with zeros instead.
            if (!part.mix) add_zeros(part.to, part.count);
            part.mix = true;
            end = std::max(end, part.to * chunk_bytes_ + bytes_of(part));
        }
    }
    const auto each = [&](std::size_t count, const auto& work) {
        if (team != nullptr) {
            return for_each_item(*team, count, no_memory, [&](int worker, std::size_t i) {
                return work(i, scratch[static_cast<std::size_t>(worker)]);
            });
        }
        Result<> done = success();
        for (std::size_t i = 0; done && i < count; ++i)
            done = work(i, scratch.front());
        return done;
    };
    const std::size_t zeros = divide_up(zeros_.size(), kZerosAtOnce);
    TWR_CHECK(each(plain.size() + zeros, [&](std::size_t i, ReadScratch& own) {
        if (i >= zeros) return read_block(group(plain[i - zeros]), own, nullptr);
        const auto some = std::span(zeros_).subspan(i * kZerosAtOnce);
        for (const auto& [to, count] : some.first(std::min(some.size(), kZerosAtOnce)))
            std::memset(to_ + to * chunk_bytes_, 0, count * chunk_bytes_);
        return success();
    }));
    if (mixed.empty()) return success();

    // Blocks that begin near each other in the output are one thread's work: there it finds the
    // output in its cache, and seldom waits for a lock.
    const auto place = [&](std::size_t g) { return group(g).front().to; };
    std::stable_sort(mixed.begin(), mixed.end(),
                     [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
    const std::uint64_t share = std::max(kLeastShare, divide_up(to_mix, scratch.size() * kSharesEach));
    std::vector<std::size_t> begins;
    std::uint64_t bytes = share;
    for (std::size_t m = 0; m < mixed.size(); ++m) {
        if (bytes >= share) {
            begins.push_back(m);
            bytes = 0;
        }
        bytes += block_bytes(group(mixed[m]));
    }
    begins.push_back(mixed.size());
    std::optional<Stripes> stripes;
    if (team != nullptr && scratch.size() > 1) stripes.emplace(end);
    return each(begins.size() - 1, [&](std::size_t i, ReadScratch& own) {
        Result<> done = success();
        for (std::size_t m = begins[i]; done && m < begins[i + 1]; ++m)
            done = read_block(group(mixed[m]), own, stripes ? &*stripes : nullptr);
        return done;
    });
}

std::uint64_t BlockPass::block_bytes(Group parts) const {
    return files_[parts.front().file]->block_chunks(parts.front().block) * chunk_bytes_;
}

// Reads one block and puts its parts, which all come as they are or are all XORed, to their places.
// stripes: null: no other thread writes there.
Result<> BlockPass::read_block(Group parts, ReadScratch& scratch, Stripes* stripes) {
    const Part& head = parts.front();
    const DifferenceFile& file = *files_[head.file];
    const std::uint64_t size = block_bytes(parts);
    ++counts_.blocks;
    counts_.bytes += file.difference().blocks[head.block].bytes;
    // A whole block that goes to one place needs no place between.
    const bool whole = parts.size() == 1 && !head.repeat && head.first == 0 && bytes_of(head) == size;
    if (whole && !head.mix)
        return file.read_block(head.block, scratch.compressor, scratch.block,
                               {to_ + head.to * chunk_bytes_, size});
    if (file.sparse(head.block) && apart(parts)) {
        scratch.pieces.clear();
        each_stretch(parts, stripes, [&](std::uint64_t begin, std::span<std::byte> to, std::mutex* lock) {
            if (!head.mix) std::memset(to.data(), 0, to.size());
            scratch.pieces.push_back({begin, to, lock});
        });
        return file.mix_block(head.block, scratch.compressor, scratch.block, size, scratch.pieces);
    }
    std::vector<std::byte>& bytes = scratch.chunks;
    if (bytes.size() < size) bytes.resize(size);
    TWR_CHECK(file.read_block(head.block, scratch.compressor, scratch.block, std::span(bytes).first(size)));
    each_stretch(parts, stripes, [&](std::uint64_t begin, std::span<std::byte> to, std::mutex* lock) {
        const std::byte* from = bytes.data() + begin;
        if (!head.mix) {
            std::memcpy(to.data(), from, to.size());
            return;
        }
        const auto held = lock == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(*lock);
        for (std::size_t b = 0; b < to.size(); ++b)
            to[b] ^= from[b];
    });
    return success();
}

}  // namespace twinrun
