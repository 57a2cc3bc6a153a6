#include "history/writer.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "history/journal.hpp"
#include "history/journal_line.hpp"

namespace twinrun {

namespace {

namespace fs = std::filesystem;

}  // namespace

Result<> HistoryWriter::check_place() const {
    struct stat ours, there;
    if (journal_lock_.descriptor() < 0 || ::fstat(journal_lock_.descriptor(), &ours) != 0) return success();
    if (::lstat(file_.c_str(), &there) == 0 && ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
        return success();
    return Error{ErrorCode::damaged, file_ +
                                         ": is no longer the file that this run writes: the history was "
                                         "moved or replaced during the run, and "
                                         "nothing more is captured into it"};
}

// Copies the journal to a new file if the old one has another name too (a hard link): somebody
// copied the history with links, and lines must not be added to the copy.
Result<> HistoryWriter::detach() {
    struct stat status;
    if (::lstat(file_.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink <= 1)
        return success();
    TWR_TRY(const auto bytes, read_whole_file(file_, kLargestManifest));
    const std::string temporary = temporary_name(file_);
    TWR_TRY(auto copy, system().create(temporary, bytes.size()));
    TWR_CHECK(copy->write_at(0, bytes));
    TWR_CHECK(copy->sync());
    TWR_CHECK(system().replace(temporary, file_));
    TWR_CHECK(copy->close());
    return system().sync_folder(path_);
}

Result<> HistoryWriter::append(const std::string& lines) {
    TWR_CHECK(check_place());
    if (journal_.torn) {
        TWR_CHECK(system().truncate(file_, journal_.whole_bytes));
        journal_.torn = false;
    }
    std::uint64_t size = 0;
    TWR_TRY(auto file, system().open_append(file_, size));
    if (size != journal_.whole_bytes && file_ == journal_path(path_, rank_, ranks_)) {
        return Error{ErrorCode::damaged, file_ + ": another program changed it during the run: it found " +
                                             std::to_string(journal_.whole_bytes) + " bytes and has " +
                                             std::to_string(size) + " now"};
    }
    TWR_CHECK(file->write_at(size, std::as_bytes(std::span(lines))));
    TWR_CHECK(file->sync());
    TWR_CHECK(file->close());
    journal_.whole_bytes = size + lines.size();
    return success();
}

// Appends lines. After success the caller applies them to journal_ and sets journal_known_; after
// an error journal_ is read from the file.
Result<> HistoryWriter::add(const std::vector<std::string>& objects) {
    std::string lines;
    for (const std::string& object : objects)
        lines += seal_line(object) + "\n";
    journal_known_ = false;
    if (auto done = append(lines); !done) {
        // Storage may have kept some of the lines, or all. The next append() removes an incomplete
        // one.
        static_cast<void>(read_back());
        return done;
    }
    return success();
}

Result<> HistoryWriter::add_leaving(const std::vector<std::string>& objects,
                                    const std::set<std::string>& folders) {
    std::vector<std::string> marked;
    for (const std::string& folder : folders) {
        if (mark_leaving(folder)) marked.push_back(folder);
    }
    auto added = add(objects);
    if (added || !journal_known_) return added;
    // The journal still names the step. With the mark, its files would be removed if the journal
    // were restored from an older copy that does not name them.
    for (const std::string& folder : marked) {
        if (is_named(folder) && unnamed_files(folder).empty()) unmark_begun(folder);
    }
    return added;
}

Result<> HistoryWriter::read_back() {
    TWR_CHECK(check_place());
    TWR_TRY(Journal now, read_rank_journal(path_, rank_, ranks_));
    // Without its first line it is not the journal that was opened, and no line could be read after
    // it.
    if (now.whole_bytes == 0)
        return Error{ErrorCode::damaged, file_ + ": was removed or emptied while this run writes it"};
    journal_ = std::move(now);
    journal_known_ = true;
    return success();
}

HistoryWriter::~HistoryWriter() = default;

Result<> HistoryWriter::add_provenance(const Provenance& facts) {
    TWR_CHECK(ensure_known());
    TWR_CHECK(add({to_text(Json{{"provenance", Json::parse(provenance_to_json(facts))}})}));
    journal_.provenance.push_back(facts);
    journal_known_ = true;
    return success();
}

Result<> HistoryWriter::add_child(const std::string& path) {
    TWR_CHECK(ensure_known());
    if (std::find(journal_.children.begin(), journal_.children.end(), path) != journal_.children.end())
        return success();
    TWR_CHECK(add({"{\"child\":" + to_text(path_to_json(path)) + "}"}));
    journal_.children.push_back(path);
    journal_known_ = true;
    return success();
}

Result<> HistoryWriter::commit(std::span<const Commit> steps) {
    std::vector<std::string> lines;
    std::set<std::string> replaced;
    TWR_CHECK(ensure_known());
    // folder of each step: `steps` may have a step more than once
    std::map<std::int64_t, std::string> current;
    for (const Commit& commit : steps) {
        const auto found = journal_.steps.find(commit.step);
        std::string& folder = current[commit.step];
        if (folder.empty() && found != journal_.steps.end()) {
            folder = found->second.folder;
            if (found->second.files.data != commit.files.files.data && folder == commit.files.folder)
                replaced.insert(folder);
        }
        if (!may_use_ordinal(journal_, commit.step, commit.files)) {
            return Error{ErrorCode::mismatch, path_ + ": step " + std::to_string(commit.step) +
                                                  ": difference " +
                                                  std::to_string(commit.files.files.difference) +
                                                  " belongs to another step already"};
        }
        const bool replaces = !folder.empty();
        if (replaces && folder != commit.files.folder) replaced.insert(folder);
        folder = commit.files.folder;
        lines.push_back(step_line(commit.step, commit.files, replaces));
    }
    TWR_CHECK(add_leaving(lines, replaced));
    for (const Commit& commit : steps)
        put_step(journal_, commit.step, commit.files);
    journal_known_ = true;
    std::set<std::string> complete;
    for (const Commit& commit : steps)
        complete.insert(commit.files.folder);
    clear(replaced, std::move(complete));
    return success();
}

Result<> HistoryWriter::move_differences(std::span<const Moved> moved, std::span<const std::uint32_t> gone) {
    TWR_CHECK(ensure_known());
    std::string line = "{\"gone\":[";
    std::set<std::string> folders;
    const auto add_folder_of = [&](std::uint32_t ordinal) {
        if (const auto found = journal_.differences.find(ordinal); found != journal_.differences.end())
            folders.insert(found->second.file.substr(0, found->second.file.find('/')));
    };
    for (std::size_t i = 0; i < gone.size(); ++i) {
        line += (i == 0 ? "" : ",") + std::to_string(gone[i]);
        add_folder_of(gone[i]);
    }
    line += "],\"moved\":[";
    for (std::size_t m = 0; m < moved.size(); ++m) {
        line += std::string(m == 0 ? "" : ",") + "{\"differences\":[";
        for (std::size_t i = 0; i < moved[m].ordinals.size(); ++i) {
            line += (i == 0 ? "" : ",") + std::to_string(moved[m].ordinals[i]);
            add_folder_of(moved[m].ordinals[i]);
        }
        line += "]," + place_keys(moved[m].place) + "}";
    }
    TWR_CHECK(add_leaving({line + "]}"}, folders));
    for (const Moved& part : moved) {
        for (const std::uint32_t ordinal : part.ordinals)
            journal_.differences[ordinal] = part.place;
    }
    for (const std::uint32_t ordinal : gone)
        journal_.differences.erase(ordinal);
    journal_known_ = true;
    std::set<std::string> complete;
    for (const Moved& part : moved)
        complete.insert(part.place.file.substr(0, part.place.file.find('/')));
    clear(folders, std::move(complete));
    return success();
}

Result<> HistoryWriter::add_difference(std::uint32_t ordinal, const DifferencePlace& place) {
    TWR_CHECK(ensure_known());
    if (journal_.differences.contains(ordinal)) return success();
    TWR_CHECK(add({"{\"difference\":" + std::to_string(ordinal) + "," + place_keys(place) + "}"}));
    put_difference(journal_, ordinal, place);
    journal_known_ = true;
    unmark_begun(place.file.substr(0, place.file.find('/')));
    return success();
}

Result<> HistoryWriter::reserve_differences(std::uint32_t end) {
    TWR_CHECK(ensure_known());
    if (end <= journal_.next_difference) return success();
    TWR_CHECK(add({"{\"reserved\":" + std::to_string(end) + "}"}));
    journal_.next_difference = end;
    journal_known_ = true;
    return success();
}

Result<> HistoryWriter::drop(std::span<const std::int64_t> steps, Differences differences) {
    std::vector<std::string> lines;
    std::set<std::string> folders;
    std::vector<std::uint32_t> gone;
    TWR_CHECK(ensure_known());
    for (const std::int64_t step : steps) {
        const auto found = journal_.steps.find(step);
        if (found == journal_.steps.end()) continue;
        lines.push_back("{\"drop\":" + std::to_string(step) + "}");
        folders.insert(found->second.folder);
        if (differences == Differences::leave && found->second.files.difference != kNoBase)
            gone.push_back(found->second.files.difference);
    }
    if (lines.empty()) return success();
    if (!gone.empty()) {
        std::string line = "{\"gone\":[";
        for (std::size_t i = 0; i < gone.size(); ++i)
            line += (i == 0 ? "" : ",") + std::to_string(gone[i]);
        lines.push_back(line + "],\"moved\":[]}");
    }
    TWR_CHECK(add_leaving(lines, folders));
    for (const std::int64_t step : steps)
        drop_step(journal_, step);
    for (const std::uint32_t ordinal : gone)
        journal_.differences.erase(ordinal);
    journal_known_ = true;
    clear(folders, {});
    return success();
}

Result<> HistoryWriter::remove_part() {
    TWR_CHECK(ensure_known());
    if (!local_ || !journal_.steps.empty() || !journal_.differences.empty())
        return Error{ErrorCode::internal, path_ + ": is not a node-local part without steps"};
    FileLock folder;
    if (!folder.take(path_)) return success();
    TWR_TRY(const LocalHistory here, LocalHistory::read(path_));
    if (here.id != id_ || here.rank != rank_ || !here.journal.steps.empty()) return success();
    // First the journal: a manifest without a journal is that of a part that was just begun.
    for (const std::string& file : {file_, manifest_path(path_)}) {
        std::error_code ignored;
        if (fs::symlink_status(file, ignored).type() == fs::file_type::regular)
            TWR_CHECK(system().remove(file));
    }
    static_cast<void>(system().remove_empty_folder(path_));
    return success();
}

Result<> HistoryWriter::drop_data(std::span<const std::int64_t> steps) {
    std::vector<std::string> lines;
    std::set<std::string> folders;
    TWR_CHECK(ensure_known());
    for (const std::int64_t step : steps) {
        const auto found = journal_.steps.find(step);
        if (found == journal_.steps.end() || found->second.files.data.empty()) continue;
        lines.push_back("{\"drop_data\":" + std::to_string(step) + "}");
        // A difference stays: other steps may need it. A file of several ranks is not one rank's to
        // remove.
        if (found->second.files.difference == kNoBase && !found->second.files.shared)
            folders.insert(found->second.folder);
    }
    if (lines.empty()) return success();
    TWR_CHECK(add_leaving(lines, folders));
    for (const std::int64_t step : steps)
        drop_step_data(journal_, step);
    journal_known_ = true;
    clear(folders, {});
    return success();
}

}  // namespace twinrun
