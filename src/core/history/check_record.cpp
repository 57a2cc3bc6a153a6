#include "history/check_record.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "history/payload_hashes.hpp"
#include "record/delta_file.hpp"

namespace twinrun {

namespace {

// A file of differences that is damaged or missing.
struct DamagedFile {
    std::string what;
    std::set<std::size_t> blocks;  // the damaged ones; empty: the whole file cannot be used
    std::vector<std::int64_t> steps;
};

std::optional<DamagedFile> look_for_damage(const Result<std::shared_ptr<DifferenceFile>>& opened) {
    if (!opened) return DamagedFile{opened.error().message, {}, {}};
    const DifferenceFile& file = **opened;
    DamagedFile damage;
    Compressor compressor;
    BlockScratch scratch;
    std::vector<std::byte> block;
    for (std::size_t b = 0; b < file.difference().blocks.size(); ++b) {
        block.resize(file.block_chunks(b) * file.difference().chunk_bytes);
        auto read = file.read_block(b, compressor, scratch, block);
        if (read) continue;
        if (damage.blocks.empty()) damage.what = read.error().message;
        damage.blocks.insert(b);
    }
    if (damage.blocks.empty()) return std::nullopt;
    return damage;
}

// Paths of the damaged files that the chunks of these runs need, directly or for the chunks that
// they were XORed with.
std::set<std::string> files_that_fail(RecordStore& store, std::vector<Run> runs,
                                      const std::map<std::string, DamagedFile>& damaged) {
    std::set<std::string> found;
    while (!runs.empty()) {
        std::vector<Run> behind;
        for (const Run& run : runs) {
            const auto path = store.locate(ordinal_of(run.source));
            if (!path) continue;
            const auto damage = damaged.find(path->file);
            const auto file = store.chain().open(ordinal_of(run.source));
            if (!file) {
                if (damage != damaged.end()) found.insert(path->file);
                continue;
            }
            const Difference& difference = (*file)->difference();
            for (std::uint64_t i = 0; i < (run.repeat ? 1 : run.count); ++i) {
                const auto at = (*file)->position(run.source + i);
                if (!at) continue;
                const auto block = static_cast<std::size_t>(*at / difference.block_chunks);
                if (damage != damaged.end() && damage->second.blocks.contains(block))
                    found.insert(path->file);
                if (!difference.blocks[block].xored) continue;
                const auto& bases = difference.bases;
                auto base =
                    std::upper_bound(bases.begin(), bases.end(), *at,
                                     [](std::uint64_t chunk, const Run& r) { return chunk < r.begin; });
                if (base == bases.begin()) continue;
                --base;
                if (*at - base->begin >= base->count) continue;
                const Location source = base->repeat ? base->source : base->source + (*at - base->begin);
                if (!behind.empty() && behind.back().source + behind.back().count == source) {
                    ++behind.back().count;
                } else {
                    behind.push_back({0, 1, source, false});
                }
            }
        }
        runs = std::move(behind);
    }
    return found;
}

// Whether all chunks of a step are known, and have the contents that were recorded.
bool has_contents(const PayloadHashes& hashes, const StepMap& map) {
    for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
        const auto content = hashes.content(map, s);
        if (!content || !RecordChain::check_content(map, s, *content)) return false;
    }
    return true;
}

// Reads all files of differences. damaged: by their paths.
Result<PayloadHashes> hash_payload(RecordStore& store, std::uint64_t memory,
                                   std::map<std::string, DamagedFile>& damaged) {
    PayloadHashes hashes(memory);
    std::set<std::string> seen;
    for (const std::uint32_t ordinal : store.ordinals()) {
        TWR_TRY(const DifferencePlace place, store.locate(ordinal));
        // After a compaction one file may have parts of several differences.
        if (!seen.insert(place.file).second) continue;
        const auto opened = store.chain().open(ordinal);
        if (opened && hashes.has_room(**opened) && hashes.add(store.chain(), **opened)) continue;
        // The damage may be in a file of which this one needs chunks.
        if (auto damage = look_for_damage(opened)) damaged[place.file] = std::move(*damage);
    }
    return hashes;
}

// Reads every byte of a step, through all differences that it needs.
Result<> read_all(RecordStore& store, const StepMap& map, std::uint64_t memory) {
    std::vector<std::size_t> all(map.directory.segments.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return store.each_part(map, all, memory, true, [](auto, auto, auto) { return success(); });
}

}  // namespace

Result<std::vector<RecordProblem>> check_record(const std::string& path, std::uint32_t rank, int threads,
                                                std::uint64_t memory) try {
    TWR_TRY(const auto store, RecordStore::open(path, rank, threads));
    std::map<std::string, DamagedFile> damaged;
    TWR_TRY(const PayloadHashes hashes, hash_payload(*store, memory, damaged));
    std::vector<RecordProblem> problems;
    const Journal journal = store->journal();
    for (const auto& [step, files] : journal.steps) {
        if (files.files.difference == kNoBase) continue;
        std::set<std::string> why;
        std::optional<Error> failure;
        if (auto map = store->map(step); !map) {
            failure = std::move(map).error();
            // Finds the first difference in its chain of bases that cannot be opened.
            for (std::uint32_t at = files.files.difference; at != kNoBase && why.empty();) {
                const auto file = store->chain().open(at);
                if (const auto place = store->locate(at); !file && place && damaged.contains(place->file))
                    why.insert(place->file);
                at = file ? (*file)->difference().base : kNoBase;
            }
        } else if (!has_contents(hashes, *map)) {
            if (auto read = read_all(*store, *map, memory); !read) failure = std::move(read).error();
            if (failure) why = files_that_fail(*store, map->runs, damaged);
        }
        for (const std::string& file : why)
            damaged.at(file).steps.push_back(step);
        if (failure && why.empty()) {
            const bool named = failure->message.starts_with(path);
            problems.push_back({{step}, (named ? "" : path + ": ") + failure->message});
        }
    }
    for (auto& [file, damage] : damaged)
        problems.push_back({std::move(damage.steps), std::move(damage.what)});
    return problems;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory to check the record"};
}

}  // namespace twinrun
