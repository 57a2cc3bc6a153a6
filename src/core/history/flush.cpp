#include "history/flush.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <new>
#include <optional>
#include <set>
#include <vector>

#include "base/aligned.hpp"
#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "metadata/metadata.hpp"
#include "record/delta_file.hpp"
#include "sketch/build.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kCopyBytes = 8 << 20;

std::unique_lock<std::mutex> lock_of(std::mutex* mutex) {
    return mutex != nullptr ? std::unique_lock(*mutex) : std::unique_lock<std::mutex>();
}

// One file, under a temporary name. check(offset, bytes) sees every byte in order.
template <class Check>
Result<std::unique_ptr<OutputFile>> copy_file(FileSystem& system, InputFile& from, const std::string& to,
                                              Check&& check) {
    TWR_TRY(auto output, system.create(to, from.size()));
    // Aligned, so that it may go around the page cache.
    const auto room = static_cast<std::size_t>(std::min<std::uint64_t>(kCopyBytes, from.size()));
    AlignedBytes memory;
    std::byte* const buffer = memory.reserve(room);
    for (std::uint64_t at = 0; at < from.size(); at += room) {
        const auto part = std::span(buffer, std::min<std::uint64_t>(room, from.size() - at));
        TWR_CHECK(from.read_at(at, part));
        TWR_CHECK(check(at, std::span<const std::byte>(part)));
        TWR_CHECK(output->write_at(at, part));
    }
    TWR_CHECK(output->sync());
    TWR_CHECK(output->close());
    return output;
}

// Checks data bytes that come in order against the sums of the fields that they belong to.
class DataCheck {
   public:
    static Result<DataCheck> create(MetadataFile& metadata) {
        DataCheck check(metadata);
        for (std::size_t f = 0; f < metadata.directory().fields.size(); ++f) {
            const FieldMetadata& field = metadata.directory().fields[f];
            if (field.extents.empty() || field.place(Section::data_sums).length == 0) continue;
            std::vector<std::uint64_t> sums(field.place(Section::data_sums).length / 8);
            TWR_CHECK(metadata.read(f, Section::data_sums, 0, std::as_writable_bytes(std::span(sums))));
            const std::uint64_t begin = field.extents[0].offset;
            const std::uint64_t end = begin + field.data_bytes();
            for (std::size_t i = 0; i < sums.size(); ++i) {
                const std::uint64_t first = begin + i * kDataSumBytes;
                std::uint64_t sum = sums[i];
                if constexpr (std::endian::native == std::endian::big) sum = __builtin_bswap64(sum);
                check.parts_.push_back({first, std::min<std::uint64_t>(first + kDataSumBytes, end), sum, f});
            }
        }
        std::sort(check.parts_.begin(), check.parts_.end(),
                  [](const Part& x, const Part& y) { return x.begin < y.begin; });
        return check;
    }
    Result<> operator()(std::uint64_t offset, std::span<const std::byte> bytes) {
        const std::uint64_t end = offset + bytes.size();
        while (at_ < parts_.size() && parts_[at_].begin < end) {
            const Part& part = parts_[at_];
            const std::uint64_t from = std::max(part.begin, offset);
            const std::uint64_t to = std::min(part.end, end);
            sum_->update(bytes.subspan(from - offset, to - from));
            if (to != part.end) break;
            if (sum_->value() != part.sum) {
                return Error{ErrorCode::damaged, "damaged: field '" +
                                                     metadata_->directory().fields[part.field].name +
                                                     "', bytes from " + std::to_string(part.begin) +
                                                     " on are not those that were captured"};
            }
            sum_ = std::make_unique<StreamingChecksum>();
            ++at_;
        }
        return success();
    }
    [[nodiscard]] bool complete() const { return at_ == parts_.size(); }

   private:
    struct Part {
        std::uint64_t begin;
        std::uint64_t end;
        std::uint64_t sum;
        std::size_t field;
    };
    explicit DataCheck(MetadataFile& metadata) : metadata_(&metadata) {}
    MetadataFile* metadata_;
    std::vector<Part> parts_;
    std::size_t at_ = 0;
    std::unique_ptr<StreamingChecksum> sum_ = std::make_unique<StreamingChecksum>();
};

Result<> check_sections(MetadataFile& metadata) {
    std::vector<std::byte> buffer;
    for (std::size_t f = 0; f < metadata.directory().fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            const std::uint64_t length = metadata.directory().fields[f].place(section).length;
            for (std::uint64_t at = 0; at < length; at += kCopyBytes) {
                buffer.resize(std::min<std::uint64_t>(kCopyBytes, length - at));
                TWR_CHECK(metadata.read(f, section, at, buffer));
            }
        }
    }
    return success();
}

Result<> check_blocks(const DifferenceFile& file) {
    const Difference& difference = file.difference();
    Compressor compressor;
    std::vector<std::byte> scratch;
    std::vector<std::byte> block;
    for (std::size_t b = 0; b < difference.blocks.size(); ++b) {
        block.resize(file.block_chunks(b) * difference.chunk_bytes);
        TWR_CHECK(file.read_block(b, compressor, scratch, block));
    }
    return success();
}

// Differences from `first` on that this one has chunks from.
std::set<std::uint32_t> needed_by(const Difference& difference, std::uint32_t first) {
    std::set<std::uint32_t> needed;
    if (difference.base != kNoBase) needed.insert(difference.base);
    for (const auto* runs : {&difference.runs, &difference.bases}) {
        for (const Run& run : *runs)
            needed.insert(ordinal_of(run.source));
    }
    needed.erase(difference.ordinal);
    needed.erase(needed.begin(), needed.lower_bound(first));
    return needed;
}

}  // namespace

Result<> copy_step(const std::string& from, const RankStep& entry, const HistoryWriter& to) try {
    FileSystem& system = to.system();
    if (entry.files.shared) {
        return Error{ErrorCode::unsupported,
                     from + ": a step in files of several ranks (shared_files) does not leave its folder"};
    }
    const fs::path source = fs::path(from) / entry.folder;
    const fs::path target = fs::path(to.path()) / entry.folder;
    TWR_TRY(const auto metadata, MetadataFile::open((source / entry.files.metadata).string()));
    std::vector<std::byte> header(kHeaderBytes);
    TWR_CHECK(metadata->file().read_at(0, header));
    if (xxh3(header) != entry.files.header_checksum ||
        metadata->file().size() != entry.files.metadata_bytes) {
        return Error{ErrorCode::damaged, metadata->path() + ": is not the file that the journal names"};
    }
    TWR_CHECK(check_sections(*metadata));
    struct Cleanup {
        FileSystem& system;
        std::vector<std::string> files;
        bool armed = true;
        ~Cleanup() {
            for (const auto& file : files) {
                if (armed) static_cast<void>(system.remove(file));
            }
        }
    } cleanup{system, {}};
    TWR_CHECK(to.make_folder(entry.folder));
    if (!entry.files.data.empty()) {
        TWR_TRY(const auto data, InputFile::open((source / entry.files.data).string()));
        if (data->size() != entry.files.data_bytes) {
            return Error{ErrorCode::damaged, data->path() + ": damaged: " + std::to_string(data->size()) +
                                                 " bytes, the journal says " +
                                                 std::to_string(entry.files.data_bytes)};
        }
        const bool recorded = entry.files.difference != kNoBase;
        if (recorded) {
            TWR_TRY(const auto file, DifferenceFile::open(data->path()));
            if (file->difference().ordinal != entry.files.difference)
                return Error{ErrorCode::damaged,
                             data->path() + ": is not the difference that the journal names"};
            TWR_CHECK(check_blocks(*file));
        }
        TWR_TRY(DataCheck check, DataCheck::create(*metadata));
        const std::string name = (target / entry.files.data).string();
        const std::string temporary = temporary_name(name);
        const auto any = [](std::uint64_t, std::span<const std::byte>) { return success(); };
        auto copied =
            recorded ? copy_file(system, *data, temporary, any) : copy_file(system, *data, temporary, check);
        if (!copied) {
            Error error = std::move(copied).error();
            return error.code == ErrorCode::damaged ? std::move(error).at(data->path()) : error;
        }
        if (!recorded && !check.complete())
            return Error{ErrorCode::damaged, data->path() + ": damaged: shorter than its metadata says"};
        cleanup.files = {temporary};
        TWR_CHECK(system.rename(temporary, name));
        cleanup.files = {name};
    }
    const std::string name = (target / entry.files.metadata).string();
    const auto any = [](std::uint64_t, std::span<const std::byte>) { return success(); };
    const std::string temporary = temporary_name(name);
    TWR_CHECK(copy_file(system, metadata->file(), temporary, any));
    cleanup.files.push_back(temporary);
    TWR_CHECK(system.rename(temporary, name));
    cleanup.files.back() = name;
    TWR_CHECK(system.sync_folder(target.string()));
    cleanup.armed = false;
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to copy a step"};
}

namespace {

bool is_intact_difference(const std::string& path, std::uint32_t ordinal) {
    const auto file = DifferenceFile::open(path);
    return file && (*file)->difference().ordinal == ordinal && check_blocks(**file);
}

// Whether a rank's files of a step are those that the journal at `path` names, to the last byte that a checksum covers.
bool is_intact(const std::string& path, const RankStep& entry) {
    const fs::path folder = fs::path(path) / entry.folder;
    const auto metadata = MetadataFile::open((folder / entry.files.metadata).string());
    if (!metadata || (*metadata)->file().size() != entry.files.metadata_bytes) return false;
    std::vector<std::byte> bytes(kHeaderBytes);
    if (!(*metadata)->file().read_at(0, bytes) || xxh3(bytes) != entry.files.header_checksum ||
        !check_sections(**metadata))
        return false;
    if (entry.files.data.empty() || entry.files.difference != kNoBase) return true;
    const auto data = InputFile::open((folder / entry.files.data).string());
    auto check = DataCheck::create(**metadata);
    if (!data || !check) return false;
    const std::uint64_t begin = entry.files.shared ? entry.files.offset : 0;
    const std::uint64_t size = entry.files.shared ? entry.files.file_bytes : entry.files.data_bytes;
    if ((*data)->size() != size || begin > size || entry.files.data_bytes > size - begin) return false;
    for (std::uint64_t at = 0; at < entry.files.data_bytes; at += bytes.size()) {
        bytes.resize(std::min<std::uint64_t>(kCopyBytes, entry.files.data_bytes - at));
        if (!(*data)->read_at(begin + at, bytes) || !(*check)(begin + at, bytes)) return false;
    }
    return check->complete();
}

// A difference by itself, without the step that it was: of a step that was captured again, or that cannot be read.
Result<> bring_difference(const std::string& path, std::uint32_t ordinal, HistoryWriter& to,
                          std::mutex* mutex) {
    FileSystem& system = to.system();
    const std::string name = std::string(kLeftoversFolder) + "/" + rank_name(to.rank()) + ".difference-" +
                             std::to_string(ordinal) + ".twr";
    const fs::path target = fs::path(to.path()) / name;
    TWR_CHECK(to.make_folder(kLeftoversFolder));
    if (!is_intact_difference(target.string(), ordinal)) {
        TWR_TRY(const auto bytes, InputFile::open(path));
        const auto any = [](std::uint64_t, std::span<const std::byte>) { return success(); };
        const std::string temporary = temporary_name(target.string());
        TWR_CHECK(copy_file(system, *bytes, temporary, any));
        TWR_CHECK(system.rename(temporary, target.string()));
        TWR_CHECK(system.sync_folder(target.parent_path().string()));
    }
    const auto guard = lock_of(mutex);
    return to.add_difference(ordinal, name);
}

// real_path(), of links too whose target is not there yet: it may be made.
fs::path place_of(const std::string& path) {
    constexpr int kMostLinks = 40;  // as the kernel has it
    fs::path place = real_path(path);
    for (int i = 0; i < kMostLinks; ++i) {
        // What is there has no links any more: only the first name that leads nowhere can be one.
        fs::path there;
        auto name = place.begin();
        std::error_code failure;
        for (; name != place.end(); ++name) {
            there /= *name;
            if (fs::symlink_status(there, failure).type() == fs::file_type::symlink) break;
        }
        if (name == place.end()) return place;
        fs::path to = there.parent_path() / fs::read_symlink(there, failure);
        if (failure) return place;
        while (++name != place.end())
            to /= *name;
        place = real_path(to.string());
    }
    return place;
}

// Of a path at or below a folder, the name that follows the folder's; of the folder itself "". Nothing: it lies elsewhere.
std::optional<std::string> first_below(const std::string& path, const std::string& folder) {
    const fs::path wanted = place_of(folder);
    std::string below;
    for (fs::path place = place_of(path);; place = place.parent_path()) {
        std::error_code not_there;
        if (place == wanted || fs::equivalent(place, wanted, not_there)) return below;
        if (place == place.parent_path()) return std::nullopt;
        below = place.filename().string();
    }
}

Error another_step(const std::string& path, std::int64_t step) {
    return {ErrorCode::mismatch, path + ": has another step " + std::to_string(step) +
                                     ": bring this one elsewhere with 'twinrun flush --to'"};
}

// What a difference has chunks from must be there before it: then it can be read, whatever is lost of the tier behind.
// from: `path` is one of its differences; its journal is read into `journal` when it is needed.
Result<> bring_needed(const std::string& from, const std::string& path, std::optional<Journal>& journal,
                      HistoryWriter& to, std::mutex* mutex) {
    TWR_TRY(const auto file, DifferenceFile::open(path));
    std::set<std::uint32_t> needed =
        needed_by(file->difference(), to.record() ? to.record()->first_difference : 0);
    {
        const auto guard = lock_of(mutex);
        std::erase_if(needed,
                      [&](std::uint32_t ordinal) { return to.journal().differences.contains(ordinal); });
    }
    if (!needed.empty() && !journal) {
        TWR_TRY(LocalHistory local, LocalHistory::read(from));
        journal = std::move(local.journal);
    }
    for (const std::uint32_t ordinal : needed) {
        const auto had = journal->differences.find(ordinal);
        if (had == journal->differences.end()) {
            return Error{ErrorCode::not_found,
                         path + ": needs difference " + std::to_string(ordinal) + ", which is not there"};
        }
        const std::string place = (fs::path(from) / had->second).string();
        TWR_TRY(const auto other, DifferenceFile::open(place));
        if (other->difference().ordinal != ordinal)
            return Error{ErrorCode::damaged, place + ": is not the difference that the journal names"};
        TWR_CHECK(check_blocks(*other));
        TWR_CHECK(bring_needed(from, place, journal, to, mutex));  // each needs smaller ones only: this ends
        TWR_CHECK(bring_difference(place, ordinal, to, mutex));
    }
    return success();
}

}  // namespace

Result<> flush_step(const std::string& from, std::int64_t step, const RankStep& entry, HistoryWriter& to,
                    std::mutex* mutex) {
    const std::uint32_t ordinal = entry.files.difference;
    bool there = false;
    {
        const auto guard = lock_of(mutex);
        const auto& steps = to.journal().steps;
        const auto had = steps.find(step);
        there = to.has(step, entry);
        // Committed already, and retention took its data meanwhile: it must not come back, and its files are not to be touched.
        if (!there && had != steps.end() && had->second.folder == entry.folder) {
            return had->second.files.header_checksum == entry.files.header_checksum
                       ? success()
                       : Result<>(another_step(to.path(), step));
        }
        // Nor must a step that left its record, unless that difference is another step's: then commit() says so.
        if (!there && ordinal != kNoBase && to.journal().taken.contains(ordinal) &&
            std::none_of(steps.begin(), steps.end(),
                         [&](const auto& other) { return other.second.files.difference == ordinal; })) {
            return success();
        }
    }
    if (!there) {
        if (ordinal != kNoBase) {
            std::optional<Journal> journal;
            TWR_CHECK(bring_needed(from, (fs::path(from) / entry.folder / entry.files.data).string(), journal,
                                   to, mutex));
        }
        // The very files may be there, where the journal was restored from an older copy.
        const fs::path folder = fs::path(to.path()) / entry.folder;
        if (!is_marked(to.path(), entry.folder, to.id()) || !is_intact(to.path(), entry) ||
            (ordinal != kNoBase && !is_intact_difference((folder / entry.files.data).string(), ordinal)))
            TWR_CHECK(copy_step(from, entry, to));
    }
    const auto guard = lock_of(mutex);
    const HistoryWriter::Commit commit{step, entry};
    return to.commit({&commit, 1});
}

std::vector<std::int64_t> in_flush_order(const Journal& journal) {
    std::vector<std::int64_t> steps;
    for (const auto& [step, entry] : journal.steps)
        steps.push_back(step);
    std::stable_sort(steps.begin(), steps.end(), [&](std::int64_t a, std::int64_t b) {
        return journal.steps.at(a).files.difference < journal.steps.at(b).files.difference;
    });
    return steps;
}

Result<FlushFacts> flush_steps(const std::string& from, const Journal& journal, HistoryWriter& to,
                               const std::function<void(std::int64_t, const Error&)>& lost) {
    FlushFacts facts;
    for (const std::int64_t step : in_flush_order(journal)) {
        RankStep entry = journal.steps.at(step);
        const auto had = to.journal().steps.find(step);
        if (had != to.journal().steps.end() && attempt_of(had->second.folder) >= attempt_of(entry.folder)) {
            if (attempt_of(had->second.folder) == attempt_of(entry.folder) &&
                had->second.files.header_checksum != entry.files.header_checksum) {
                lost(step, another_step(to.path(), step));
            }
            continue;
        }
        // What is missing, or is another file, may have left, or have been captured again: the part's journal tells.
        Result<> copied = flush_step(from, step, entry, to);
        bool left = false;
        while (!copied && !left) {
            const auto now = LocalHistory::read(from);
            if (!now) break;
            const auto there = now->journal.steps.find(step);
            left = there == now->journal.steps.end();
            if (left || there->second == entry) break;
            entry = there->second;
            copied = flush_step(from, step, entry, to);
        }
        if (left) continue;
        if (!copied) {
            lost(step, copied.error());
            continue;
        }
        if (!to.journal().steps.contains(step)) continue;  // it left the record
        ++facts.steps;
        facts.bytes += entry.files.data_bytes + entry.files.metadata_bytes;
    }
    return facts;
}

Result<FlushFacts> flush_folder(FileSystem& system, const std::string& local, const std::string& history,
                                const std::function<void(std::int64_t, const Error&)>& lost) {
    TWR_TRY(const LocalHistory from, LocalHistory::read(local));
    if (first_below(history, local)) {
        return Error{ErrorCode::invalid_argument,
                     history + ": is the folder of the part itself, or lies in it: name another folder"};
    }
    TWR_TRY(const auto to,
            HistoryWriter::open(system, history, from.settings, from.rank, from.ranks, Existing::append));
    // Who wrote the history till now may have changed the part too.
    TWR_TRY(const LocalHistory now, LocalHistory::read(local));
    if (now.history != from.history || now.settings != from.settings || now.rank != from.rank ||
        now.ranks != from.ranks) {
        return Error{ErrorCode::mismatch, local + ": another run has taken it meanwhile: try again"};
    }
    if (!to->made() && !now.of.empty() && now.of != to->id() &&
        real_path(history) == real_path(now.history)) {
        return Error{ErrorCode::mismatch,
                     history + ": is not the history that " + local +
                         " was begun for: bring its steps elsewhere with 'twinrun flush --to'"};
    }
    return flush_steps(local, now.journal, *to, lost);
}

Result<> check_apart(const std::string& path, const std::string& local) {
    const auto below = first_below(path, local);
    if (!below) return success();
    std::uint32_t rank = 0;
    const bool of_rank =
        std::sscanf(below->c_str(), "rank-%9" SCNu32, &rank) == 1 && *below == rank_name(rank);
    if (!below->empty() && !of_rank) return success();
    return Error{ErrorCode::invalid_argument,
                 path + ": is in the way of the node-local tier: local is " + local +
                     ", where ranks keep their steps in " + rank_name(0) +
                     " and so on: give the history and local folders of their own"};
}

namespace {

// Whether these differences, and what they need of the same record, can be read. checked: those that were seen already.
bool are_readable(const std::string& path, const Journal& journal, std::uint32_t first,
                  std::set<std::uint32_t> wanted, std::set<std::uint32_t>& checked) {
    while (!wanted.empty()) {
        const std::uint32_t ordinal = *wanted.begin();
        wanted.erase(wanted.begin());
        if (!checked.insert(ordinal).second) continue;
        const auto place = journal.differences.find(ordinal);
        if (place == journal.differences.end()) return false;
        const auto file = DifferenceFile::open((fs::path(path) / place->second).string());
        if (!file || (*file)->difference().ordinal != ordinal || !check_blocks(**file)) return false;
        wanted.merge(needed_by((*file)->difference(), first));
    }
    return true;
}

}  // namespace

bool is_flushed(const LocalHistory& local) try {
    std::uint32_t ranks = 0;
    const auto settings = read_history_settings(local.history, ranks);
    if (!settings || ranks != local.ranks) return false;
    const auto journal = read_rank_journal(local.history, local.rank, ranks);
    if (!journal) return false;
    const std::uint32_t first = settings->record ? settings->record->first_difference : 0;
    std::set<std::uint32_t> checked;
    for (const auto& [step, entry] : local.journal.steps) {
        const auto had = journal->steps.find(step);
        if (had == journal->steps.end() || attempt_of(had->second.folder) < attempt_of(entry.folder))
            return false;
        const RankStep& there = had->second;
        // The very files, unless their data may have left by keep_data_steps.
        if (there.folder == entry.folder && there.files.header_checksum != entry.files.header_checksum)
            return false;
        if (!is_intact(local.history, there)) return false;
        if (there.files.difference != kNoBase &&
            !are_readable(local.history, *journal, first, {there.files.difference}, checked))
            return false;
    }
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

Result<> check_part(const std::string& path, const LocalHistory& part, const HistorySettings& settings,
                    std::uint32_t rank, std::uint32_t ranks, const std::string& history,
                    const HistoryId& of) {
    const bool same = part.is_of(settings, rank, ranks, history, of);
    if (same || part.journal.steps.empty() || is_flushed(part)) return success();
    return Error{ErrorCode::mismatch, path + ": holds steps of another run, on their way to " + part.history +
                                          ": bring them there with 'twinrun flush', or remove the folder"};
}

}  // namespace twinrun
