#include "dedup/host_sources.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "dedup/base_deduplicator.hpp"
#include "dedup/shares.hpp"

namespace twinrun {

namespace {

// Chunks of the step under way that are in the table before their place in the payload is known:
// behind all that are.
constexpr std::uint64_t kUnplaced = kMostPayloadChunks;

}  // namespace

void HostSources::begin(std::uint32_t ordinal) {
    ordinal_ = ordinal;
    placed_ = 0;
    collisions_ = 0;
    payload_at_ = {};
}

Location HostSources::unplaced(std::uint64_t j) const { return location(ordinal_, kUnplaced + j); }

Result<> HostSources::find(std::span<const std::uint64_t> changed, bool at_once) {
    changed_ = changed;
    sources_.resize(changed.size());
    if (!looks_up(options_.method)) {
        for (Location& source : sources_)
            source = location(ordinal_, placed_++);
        return success();
    }
    if (at_once) return look_up(0, changed.size(), 2 * changed.size());
    const std::uint64_t most = std::max<std::uint64_t>(1, table_.most_at_once() / 2);
    for (std::uint64_t done = 0; done < changed.size(); done += most) {
        const std::uint64_t end = std::min<std::uint64_t>(changed.size(), done + most);
        TWR_CHECK(look_up(done, end, end - done));
    }
    return success();
}

void HostSources::take_all(std::span<const std::uint64_t> changed, bool at_once) {
    changed_ = changed;
    sources_.resize(changed.size());
    const std::uint64_t most =
        at_once ? changed.size() : std::max<std::uint64_t>(1, table_.most_at_once() / 2);
    for (std::uint64_t done = 0; done < changed.size(); done += most) {
        const std::uint64_t count = std::min<std::uint64_t>(changed.size() - done, most);
        if (!table_.reserve(at_once ? 2 * count : count, team_)) throw std::bad_alloc();
        each_item(team_, count, [&](std::uint64_t i) {
            const std::uint64_t j = done + i;
            sources_[j] = location(ordinal_, placed_ + j);
            table_.use(table_.insert(image_.masked(image_.hash(changed_[j])), sources_[j]), ordinal_);
        });
    }
    placed_ += changed.size();
}

// Sources of changed chunks [begin, end): a copy's, or the next place of the payload.
Result<> HostSources::look_up(std::uint64_t begin, std::uint64_t end, std::uint64_t room) {
    if (!table_.reserve(room, team_)) throw std::bad_alloc();
    slots_.resize(changed_.size());
    enter(begin, end);
    // Each worker places its own new chunks behind those of the workers before it.
    std::vector<std::uint64_t> counts = count_new(begin, end);
    if (options_.verify) TWR_CHECK(check_copies(begin, end, counts));
    for (std::size_t w = 1; w < counts.size(); ++w)
        counts[w] += counts[w - 1];
    place_new(begin, end, counts);
    follow_placed(begin, end);
    placed_ += counts.back();
    return success();
}

void HostSources::enter(std::uint64_t begin, std::uint64_t end) {
    each_item(team_, end - begin, [&](std::uint64_t i) {
        const std::uint64_t j = begin + i;
        slots_[j] = table_.insert(image_.masked(image_.hash(changed_[j])), unplaced(j));
    });
}

// Chunks that are the smallest themselves are new. Returns how many each worker has; the count of
// worker w is at w + 1.
std::vector<std::uint64_t> HostSources::count_new(std::uint64_t begin, std::uint64_t end) {
    std::vector<std::uint64_t> counts(static_cast<std::size_t>(team_.size()) + 1);
    each_share(team_, end - begin, [&](const ShareRange& range, int worker) {
        std::uint64_t own = 0;
        for (std::uint64_t j = begin + range.begin; j < begin + range.end; ++j) {
            sources_[j] = table_.at(slots_[j]);
            own += sources_[j] == unplaced(j) ? 1 : 0;
        }
        counts[static_cast<std::size_t>(worker) + 1] = own;
    });
    return counts;
}

// Copies whose bytes are others than their source's become new chunks.
Result<> HostSources::check_copies(std::uint64_t begin, std::uint64_t end,
                                   std::vector<std::uint64_t>& counts) {
    std::vector<std::byte> source(options_.chunk_bytes);
    std::vector<std::byte> own(options_.chunk_bytes);
    std::uint64_t place = placed_;
    for (int worker = 0; worker < team_.size(); ++worker) {
        const ShareRange range = share_of(end - begin, worker, team_.size());
        for (std::uint64_t j = begin + range.begin; j < begin + range.end; ++j) {
            if (sources_[j] != unplaced(j)) {
                TWR_TRY(const bool copy, is_copy(j, own, source));
                if (copy) continue;
                ++collisions_;
                sources_[j] = unplaced(j);
                ++counts[static_cast<std::size_t>(worker) + 1];
            }
            payload_at_.resize(place + 1);
            payload_at_[place++] = changed_[j];
        }
    }
    return success();
}

// Whether the changed chunk has the bytes of its source. own and source: memory for both.
Result<bool> HostSources::is_copy(std::uint64_t j, std::span<std::byte> own,
                                  std::span<std::byte> source) const {
    image_.copy_chunk(changed_[j], own.data());
    const std::uint64_t chunk = chunk_of(sources_[j]);
    if (ordinal_of(sources_[j]) != ordinal_) {
        TWR_CHECK(options_.read(sources_[j], source));
    } else {
        image_.copy_chunk(chunk >= kUnplaced ? changed_[chunk - kUnplaced] : payload_at_[chunk],
                          source.data());
    }
    return std::memcmp(own.data(), source.data(), own.size()) == 0;
}

// before: how many new chunks the workers before each one have.
void HostSources::place_new(std::uint64_t begin, std::uint64_t end,
                            const std::vector<std::uint64_t>& before) {
    each_share(team_, end - begin, [&](const ShareRange& range, int worker) {
        std::uint64_t place = placed_ + before[static_cast<std::size_t>(worker)];
        for (std::uint64_t j = begin + range.begin; j < begin + range.end; ++j) {
            if (sources_[j] != unplaced(j)) continue;
            const Location at = location(ordinal_, place++);
            // A chunk that verify took out of its slot does not own it.
            if (table_.at(slots_[j]) == unplaced(j)) table_.set(slots_[j], at);
            sources_[j] = at;
        }
    });
}

// Copies of chunks that are new in this call get the places of these.
void HostSources::follow_placed(std::uint64_t begin, std::uint64_t end) {
    each_item(team_, end - begin, [&](std::uint64_t i) {
        const std::uint64_t j = begin + i;
        if (ordinal_of(sources_[j]) == ordinal_ && chunk_of(sources_[j]) >= kUnplaced)
            sources_[j] = sources_[chunk_of(sources_[j]) - kUnplaced];
        table_.use(slots_[j], ordinal_);
    });
}

}  // namespace twinrun
