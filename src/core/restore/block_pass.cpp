#include "restore/block_pass.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/checked.hpp"
#include "platform/team_items.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kLeastStripe = std::uint64_t{64} << 10;
constexpr std::uint64_t kMostStripes = std::uint64_t{1} << 14;
constexpr std::uint64_t kSharesEach = 8;  // of a thread, so that all have about as much to do
constexpr std::size_t kZerosAtOnce = 32;
constexpr std::uint64_t kLeastShare = std::uint64_t{256} << 10;

}  // namespace

// The output in stripes. XOR may come in any order, but not from two threads at one place at once.
struct BlockPass::Stripes {
    explicit Stripes(std::uint64_t bytes)
        : size(std::max(kLeastStripe, divide_up(bytes, kMostStripes))),
          locks(static_cast<std::size_t>(divide_up(bytes, size))) {}

    [[nodiscard]] std::size_t of(std::uint64_t byte) const { return static_cast<std::size_t>(byte / size); }

    const std::uint64_t size;
    std::vector<std::mutex> locks;

    // Those that these parts lie in, each once and in ascending order.
    void find(std::span<const Part> parts, std::uint64_t chunk_bytes, std::vector<std::size_t>& which) const {
        for (const Part& part : parts) {
            const std::uint64_t begin = part.to * chunk_bytes;
            const std::size_t last = of(begin + part.count * chunk_bytes - 1);
            for (std::size_t s = of(begin); s <= last; ++s) {
                if (which.empty() || which.back() != s) which.push_back(s);
            }
        }
        std::sort(which.begin(), which.end());
        which.erase(std::unique(which.begin(), which.end()), which.end());
    }

    // Holds stripes that ascend: so nobody waits in a circle.
    class Held {
       public:
        Held(Stripes* stripes, std::span<const std::size_t> which) : stripes_(stripes), which_(which) {
            for (const std::size_t stripe : which_)
                stripes_->locks[stripe].lock();
        }
        ~Held() {
            for (const std::size_t stripe : which_)
                stripes_->locks[stripe].unlock();
        }
        Held(const Held&) = delete;
        Held& operator=(const Held&) = delete;

       private:
        Stripes* const stripes_;
        const std::span<const std::size_t> which_;
    };
};

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
    std::uint64_t end = 0;
    for (std::size_t g = 0; g + 1 < groups_.size(); ++g) {
        const Group parts = group(g);
        const auto mixes = [](const Part& part) { return part.mix; };
        if (std::none_of(parts.begin(), parts.end(), mixes)) {
            plain.push_back(g);
            continue;
        }
        mixed.push_back(g);
        for (Part& part : parts) {
            // XORed with zeros it is as it is.
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

    // Neighbours in the output are one thread's work, from its first byte on: there it finds the
    // output in its cache. It waits for others only where a share ends: those began long ago.
    Stripes stripes(end);
    const std::uint64_t threads = team == nullptr ? 1 : scratch.size();
    const std::uint64_t share = std::max(kLeastShare, divide_up(end, threads * kSharesEach));
    const auto place = [&](std::size_t g) { return group(g).front().to * chunk_bytes_; };
    std::stable_sort(mixed.begin(), mixed.end(),
                     [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
    std::vector<std::size_t> begins;
    for (std::size_t m = 0; m < mixed.size(); ++m) {
        if (m == 0 || place(mixed[m - 1]) / share != place(mixed[m]) / share) begins.push_back(m);
    }
    begins.push_back(mixed.size());
    return each(begins.size() - 1, [&](std::size_t i, ReadScratch& own) {
        Result<> done = success();
        for (std::size_t m = begins[i]; done && m < begins[i + 1]; ++m)
            done = read_block(group(mixed[m]), own, team == nullptr ? nullptr : &stripes);
        return done;
    });
}

// Reads one block and puts its parts to their places. stripes: to be held, where others may write
// there meanwhile.
Result<> BlockPass::read_block(Group parts, ReadScratch& scratch, Stripes* stripes) {
    const Part& head = parts.front();
    const DifferenceFile& file = *files_[head.file];
    const std::uint64_t size = file.block_chunks(head.block) * chunk_bytes_;
    ++counts_.blocks;
    counts_.bytes += file.difference().blocks[head.block].bytes;
    // A whole block that goes to one place needs no place between.
    const bool whole = parts.size() == 1 && !head.repeat && head.first == 0 && bytes_of(head) == size;
    if (whole && !head.mix)
        return file.read_block(head.block, scratch.compressor, scratch.block,
                               {to_ + head.to * chunk_bytes_, size});
    std::vector<std::size_t>& which = scratch.stripes;
    which.clear();
    if (stripes != nullptr) stripes->find(parts, chunk_bytes_, which);
    if (file.sparse(head.block) && apart(parts)) {
        scratch.pieces.clear();
        for (const Part& part : parts) {
            const std::span piece(to_ + part.to * chunk_bytes_, bytes_of(part));
            if (!part.mix) std::memset(piece.data(), 0, piece.size());
            scratch.pieces.push_back({part.first * chunk_bytes_, piece});
        }
        const Stripes::Held held(stripes, which);
        return file.mix_block(head.block, scratch.compressor, scratch.block, size, scratch.pieces);
    }
    std::vector<std::byte>& bytes = scratch.chunks;
    if (bytes.size() < size) bytes.resize(size);
    TWR_CHECK(file.read_block(head.block, scratch.compressor, scratch.block, std::span(bytes).first(size)));
    const Stripes::Held held(stripes, which);
    for (const Part& part : parts) {
        const std::byte* from = bytes.data() + part.first * chunk_bytes_;
        const std::uint64_t length = part.repeat ? chunk_bytes_ : bytes_of(part);
        for (std::uint64_t i = 0; i < (part.repeat ? part.count : 1); ++i) {
            std::byte* out = to_ + (part.to + i) * chunk_bytes_;
            if (!part.mix) {
                std::memcpy(out, from, length);
            } else {
                for (std::uint64_t b = 0; b < length; ++b)
                    out[b] ^= from[b];
            }
        }
    }
    return success();
}

}  // namespace twinrun
