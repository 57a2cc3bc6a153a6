// A read of sub-files in any number, by any number of ranks: their index says which bytes of the
// whole file each of them has.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aggregate/mpi/index.hpp"
#include "aggregate/mpi/target.hpp"
#include "aggregate/mpi/transfer.hpp"
#include "aggregate/plan/stored.hpp"
#include "base/caught.hpp"
#include "base/checksum.hpp"

namespace twinrun::aggregation {

// The plan of a read, for the next one of files that are cut alike.
struct StoredRead {
    std::uint64_t cut = 0;           // hash of the cutting
    std::uint64_t declarations = 0;  // the declaration that the plan is of
    bool declared = false;
    std::unique_ptr<Plan> plan;
    SubFiles files;
    std::vector<std::size_t> with_holes;
};

namespace {

enum class Kind : std::uint64_t {
    one,     // the whole file itself
    behind,  // files whose bytes lie one behind the other in the whole
    placed,  // files whose sets the index places
};

// How the whole file is cut into files, as ranks exchange it.
using Words = std::vector<std::uint64_t>;

Words words_of(Kind kind, const Index& index) {
    Words words{static_cast<std::uint64_t>(kind), index.whole_bytes, index.size()};
    for (const SubFile& file : index.files)
        words.push_back(file.bytes);
    for (const auto& sets : index.places) {
        words.push_back(sets.size());
        for (const StridedSet& set : sets)
            words.insert(words.end(), {set.offset, set.width, set.count, set.stride});
    }
    return words;
}

struct Cutting {
    Kind kind = Kind::one;
    std::uint64_t whole_bytes = 0;
    std::vector<std::uint64_t> ends;  // of each file, in the stream of all
    std::vector<StoredSet> stored;    // ascending by place in the whole file
};

Cutting cutting_in(std::span<const std::uint64_t> words) {
    Cutting cutting;
    std::size_t at = 0;
    const auto next = [&] { return words[at++]; };
    cutting.kind = static_cast<Kind>(next());
    cutting.whole_bytes = next();
    const std::uint64_t files = next();
    std::uint64_t end = 0;
    for (std::uint64_t i = 0; i < files; ++i)
        cutting.ends.push_back(end += next());
    if (cutting.kind != Kind::placed) {
        cutting.whole_bytes = end;
        if (end != 0) cutting.stored.push_back({{0, end, 1, end}, 0});
        return cutting;
    }
    std::uint64_t place = 0;
    for (std::uint64_t i = 0; i < files; ++i) {
        for (std::uint64_t sets = next(); sets > 0; --sets) {
            const std::uint64_t offset = next();
            const std::uint64_t width = next();
            const std::uint64_t count = next();
            const StridedSet set{offset, width, count, next()};
            cutting.stored.push_back({set, place});
            place += set.bytes();
        }
    }
    std::sort(cutting.stored.begin(), cutting.stored.end(),
              [](const StoredSet& a, const StoredSet& b) { return a.where.offset < b.where.offset; });
    return cutting;
}

// By rank 0: how the file at `path` is cut; nothing if there is neither an index nor, with parts of
// a whole, the file itself.
Result<Words> look(const twr_aggregate& a, const char* path) {
    auto index = read_index(path);
    const bool one = a.group.files == 1;
    if (!index) {
        if (!one || index.error().code != ErrorCode::invalid_argument) return index.error();
        // A single file needs no index: a foreign file with the index' name is left alone.
        const auto bytes = file_size(path);
        if (bytes || bytes.error().code != ErrorCode::not_found) return Words();
        return Error{ErrorCode::not_found,
                     std::string(path) + ": is not there, and " + index_name(path) +
                         " is no index of sub-files, or an altered one: check the path, or remove the "
                         "index and write the files again"};
    }
    if (!*index) {
        if (one) return Words();
        const auto bytes = file_size(path);
        if (!bytes) {
            return Error{ErrorCode::not_found,
                         index_name(path) + ": is not there, nor is a file " + path +
                             ": a write of these files did not end, or something else wrote them; write "
                             "them again"};
        }
        Index itself;
        itself.files.push_back({*bytes, 0, 0});
        return words_of(Kind::one, itself);
    }
    // A program that knows nothing of parts may mean the file itself.
    if (one && !a.settings.whole && file_size(path)) {
        return Error{ErrorCode::mismatch,
                     std::string(path) + ": is there, and so are sub-files of it (" + index_name(path) +
                         "): set offsets = whole to read the sub-files, or remove what is not meant"};
    }
    TWR_CHECK(check_places(path, **index));
    TWR_CHECK(check_sub_files(path, **index));
    return words_of((*index)->whole() ? Kind::placed : Kind::behind, **index);
}

// This rank's declared items, as they count in the whole file.
const std::vector<RankSet>& declared_sets(const twr_aggregate& a) {
    return a.whole ? a.whole->sets() : a.plan->sets();
}

// [collective] All ranks get rank 0's words.
Result<> spread(Team& team, Words& words, std::uint64_t count) {
    Team::Vote room;
    room.mine = caught([&]() -> Result<> {
        words.resize(count);
        return success();
    });
    TWR_CHECK(team.agree(room));
    MPI_Request request = MPI_REQUEST_NULL;
    TWR_MPI("MPI_Ibcast",
            MPI_Ibcast(words.data(), static_cast<int>(count), MPI_UINT64_T, 0, team.comm(), &request));
    return team.finish(request, "how the files are cut");
}

// [collective] Finds what this rank reads in the files, and elects aggregators for it.
Result<> plan_read(twr_aggregate& a, StoredRead& read, const char* path,
                   std::span<const std::uint64_t> words) {
    read.declared = false;
    auto sets = caught([&]() -> Result<std::vector<RankSet>> {
        Cutting cutting = cutting_in(words);
        const auto& own = declared_sets(a);
        std::uint64_t end = 0;
        for (const RankSet& set : own)
            end = std::max(end, set.where.end());
        if (end > cutting.whole_bytes) {
            return Error{ErrorCode::damaged, std::string(path) + ": its files have " +
                                                 std::to_string(cutting.whole_bytes) + " bytes in all, and " +
                                                 std::to_string(end) +
                                                 " are declared: they are not the files that were written"};
        }
        TWR_TRY(FoundSets found, find_stored(own, cutting.stored));
        read.with_holes = std::move(found.with_holes);
        read.files.ends = std::move(cutting.ends);
        read.files.paths.clear();
        if (!read.plan) read.plan = std::make_unique<Plan>(*a.team, a.settings, a.everyone, *a.topology);
        return std::move(found.sets);
    });
    // A rank without memory for its plan has none to declare with.
    Team::Vote made;
    if (!sets) made.mine = sets.error();
    TWR_CHECK(a.team->agree(made));
    // Ranks agreed already, when they declared, that no two of them claim a byte.
    TWR_CHECK(read.plan->declare(std::move(sets), a.plan->variables(), true));
    read.declared = true;
    return success();
}

Result<> name_files(StoredRead& read, const char* path, Kind kind) {
    return caught([&]() -> Result<> {
        read.files.paths.clear();
        for (std::size_t number = 0; number < read.files.ends.size(); ++number)
            read.files.paths.push_back(kind == Kind::one ? std::string(path) : sub_file_name(path, number));
        return success();
    });
}

// Bytes of the whole file that nobody wrote are zeros.
void zero_holes(const StoredRead& read, std::span<const RankSet> sets, void* const* data) {
    constexpr std::uint64_t kStep = std::uint64_t{64} << 10;
    // Not allocated: other ranks wait for this one already.
    static constexpr std::array<std::byte, kStep> zeros{};
    for (const std::size_t number : read.with_holes) {
        const RankSet& set = sets[number];
        for (std::uint64_t at = set.where.begin(); at < set.where.end(); at += kStep)
            scatter_range(set, data, {at, std::min(at + kStep, set.where.end())}, zeros.data());
    }
}

}  // namespace

Result<bool> read_stored(twr_aggregate& a, const char* path, void* const* data) {
    const auto start = Clock::now();
    struct Wires {
        Words words;
    };
    const Kept<Wires> kept(*a.team);
    Team::Vote vote;
    vote.differs = "the path differs from that of rank 0";
    vote.mine = caught([&]() -> Result<> {
        if (path != nullptr) vote.same = xxh3(std::string_view(path));
        if (!a.stored) a.stored = std::make_shared<StoredRead>();
        return check_arguments(a, path, data);
    });
    vote.on_root = [&](Outcome& outcome) {
        return caught([&]() -> Result<> {
            TWR_TRY(kept->words, look(a, path));
            outcome.payload[0] = kept->words.size();
            if (kept->words.empty()) return success();
            outcome.payload[1] = xxh3(std::as_bytes(std::span(kept->words)));
            outcome.payload[2] = kept->words.front();
            return success();
        });
    };
    TWR_TRY(const Outcome outcome, a.team->agree(vote));
    if (outcome.payload[0] == 0) return false;
    StoredRead& read = *a.stored;
    // Equal on all ranks.
    const bool known = read.declared && read.cut == outcome.payload[1] && read.declarations == a.declarations;
    if (!known) {
        TWR_CHECK(spread(*a.team, kept->words, outcome.payload[0]));
        TWR_CHECK(plan_read(a, read, path, kept->words));
        read.cut = outcome.payload[1];
        read.declarations = a.declarations;
    }
    Result<> mine = name_files(read, path, static_cast<Kind>(outcome.payload[2]));
    const std::string first = mine && !read.files.paths.empty() ? read.files.paths.front() : std::string();
    TWR_TRY(const auto pipeline,
            begin(a, {*read.plan, a.everyone, &read.files}, Mode::read, data, path, std::move(mine), first));
    zero_holes(read, declared_sets(a), data);
    TWR_CHECK(finish_read(a, *pipeline, first, path, start));
    return true;
}

}  // namespace twinrun::aggregation
