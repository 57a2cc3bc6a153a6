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
    return Error{
        ErrorCode::damaged,
        file_ +
            ": is not the file any more that this run writes: the history was moved or replaced while "
            "the run went on, and nothing more is captured into it"};
}

// Gives the journal a file of its own where the same file has another name: a copy of the history
// that was made of links.
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
        return Error{ErrorCode::damaged, file_ + ": changed by another hand while the run went on: it had " +
                                             std::to_string(journal_.whole_bytes) + " bytes, now " +
                                             std::to_string(size)};
    }
    TWR_CHECK(file->write_at(size, std::as_bytes(std::span(lines))));
    TWR_CHECK(file->sync());
    TWR_CHECK(file->close());
    journal_.whole_bytes = size + lines.size();
    return success();
}

// Appends lines and makes journal() what the file says then.
Result<> HistoryWriter::add(const std::vector<std::string>& objects) {
    std::string lines;
    for (const std::string& object : objects)
        lines += seal_line(object) + "\n";
    sure_ = false;  // until the caller has put them into journal_ too
    if (auto done = append(lines); !done) {
        // Storage may keep a part of the lines, or all of them: go by what is there now. The next
        // call drops a torn one first.
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
    if (added || !sure_) return added;
    // The journal names the step still: as a folder that was begun, a manifest from an older copy
    // would let it go.
    for (const std::string& folder : marked) {
        if (is_named(folder) && unnamed_files(folder).empty()) settle(folder);
    }
    return added;
}

Result<> HistoryWriter::read_back() {
    TWR_CHECK(check_place());
    TWR_TRY(Journal now, read_rank_journal(path_, rank_, ranks_));
    // Without its first line it is not the journal that was opened: lines behind nothing could not
    // be read.
    if (now.whole_bytes == 0)
        return Error{ErrorCode::damaged, file_ + ": is gone or empty, though a run writes it"};
    journal_ = std::move(now);
    sure_ = true;
    return success();
}

HistoryWriter::~HistoryWriter() = default;

Result<> HistoryWriter::add_provenance(const Provenance& facts) {
    TWR_CHECK(be_sure());
    TWR_CHECK(add({to_text(Json{{"provenance", Json::parse(provenance_to_json(facts))}})}));
    journal_.provenance.push_back(facts);
    sure_ = true;
    return success();
}

Result<> HistoryWriter::add_child(const std::string& path) {
    TWR_CHECK(be_sure());
    if (std::find(journal_.children.begin(), journal_.children.end(), path) != journal_.children.end())
        return success();
    TWR_CHECK(add({"{\"child\":" + to_text(path_to_json(path)) + "}"}));
    journal_.children.push_back(path);
    sure_ = true;
    return success();
}

Result<> HistoryWriter::commit(std::span<const Commit> steps) {
    std::vector<std::string> lines;
    std::set<std::string> replaced;
    TWR_CHECK(be_sure());
    std::map<std::int64_t, std::string> there;  // a step may be among them more than once
    for (const Commit& commit : steps) {
        const auto had = journal_.steps.find(commit.step);
        std::string& folder = there[commit.step];
        if (folder.empty() && had != journal_.steps.end()) {
            folder = had->second.folder;
            if (had->second.files.data != commit.files.files.data && folder == commit.files.folder)
                replaced.insert(folder);
        }
        if (!may_have(journal_, commit.step, commit.files)) {
            return Error{ErrorCode::mismatch, path_ + ": step " + std::to_string(commit.step) +
                                                  ": difference " +
                                                  std::to_string(commit.files.files.difference) +
                                                  " is there already, of another step"};
        }
        const bool replaces = !folder.empty();
        if (replaces && folder != commit.files.folder) replaced.insert(folder);
        folder = commit.files.folder;
        lines.push_back(step_line(commit.step, commit.files, replaces));
    }
    TWR_CHECK(add_leaving(lines, replaced));
    for (const Commit& commit : steps)
        put_step(journal_, commit.step, commit.files);
    sure_ = true;
    std::set<std::string> whole;
    for (const Commit& commit : steps)
        whole.insert(commit.files.folder);
    clear(replaced, std::move(whole));
    return success();
}

Result<> HistoryWriter::move_differences(std::span<const Moved> moved, std::span<const std::uint32_t> gone) {
    TWR_CHECK(be_sure());
    std::string line = "{\"gone\":[";
    std::set<std::string> folders;
    const auto leaves = [&](std::uint32_t ordinal) {
        if (const auto had = journal_.differences.find(ordinal); had != journal_.differences.end())
            folders.insert(had->second.substr(0, had->second.find('/')));
    };
    for (std::size_t i = 0; i < gone.size(); ++i) {
        line += (i == 0 ? "" : ",") + std::to_string(gone[i]);
        leaves(gone[i]);
    }
    line += "],\"moved\":[";
    for (std::size_t m = 0; m < moved.size(); ++m) {
        line += std::string(m == 0 ? "" : ",") + "{\"differences\":[";
        for (std::size_t i = 0; i < moved[m].ordinals.size(); ++i) {
            line += (i == 0 ? "" : ",") + std::to_string(moved[m].ordinals[i]);
            leaves(moved[m].ordinals[i]);
        }
        line += "],\"file\":" + to_text(moved[m].file) + "}";
    }
    TWR_CHECK(add_leaving({line + "]}"}, folders));
    for (const Moved& part : moved) {
        for (const std::uint32_t ordinal : part.ordinals)
            journal_.differences[ordinal] = part.file;
    }
    for (const std::uint32_t ordinal : gone)
        journal_.differences.erase(ordinal);
    sure_ = true;
    std::set<std::string> whole;
    for (const Moved& part : moved)
        whole.insert(part.file.substr(0, part.file.find('/')));
    clear(folders, std::move(whole));
    return success();
}

Result<> HistoryWriter::add_difference(std::uint32_t ordinal, const std::string& file) {
    TWR_CHECK(be_sure());
    if (journal_.differences.contains(ordinal)) return success();
    TWR_CHECK(add({"{\"difference\":" + std::to_string(ordinal) + ",\"file\":" + to_text(file) + "}"}));
    put_difference(journal_, ordinal, file);
    sure_ = true;
    settle(file.substr(0, file.find('/')));
    return success();
}

Result<> HistoryWriter::reserve_differences(std::uint32_t end) {
    TWR_CHECK(be_sure());
    if (end <= journal_.next_difference) return success();
    TWR_CHECK(add({"{\"reserved\":" + std::to_string(end) + "}"}));
    journal_.next_difference = end;
    sure_ = true;
    return success();
}

Result<> HistoryWriter::drop(std::span<const std::int64_t> steps, Differences differences) {
    std::vector<std::string> lines;
    std::set<std::string> folders;
    std::vector<std::uint32_t> gone;
    TWR_CHECK(be_sure());
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end()) continue;
        lines.push_back("{\"drop\":" + std::to_string(step) + "}");
        folders.insert(had->second.folder);
        if (differences == Differences::leave && had->second.files.difference != kNoBase)
            gone.push_back(had->second.files.difference);
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
    sure_ = true;
    clear(folders, {});
    return success();
}

Result<> HistoryWriter::remove_part() {
    TWR_CHECK(be_sure());
    if (!local_ || !journal_.steps.empty() || !journal_.differences.empty())
        return Error{ErrorCode::internal, path_ + ": is no part of a history without steps"};
    FileLock folder;
    if (!folder.take(path_)) return success();
    TWR_TRY(const LocalHistory here, LocalHistory::read(path_));
    if (here.id != id_ || here.rank != rank_ || !here.journal.steps.empty()) return success();
    // First the journal: a manifest without one is a part that was begun.
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
    std::vector<std::string> files;
    TWR_CHECK(be_sure());
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end() || had->second.files.data.empty()) continue;
        lines.push_back("{\"drop_data\":" + std::to_string(step) + "}");
        if (had->second.files.difference == kNoBase && !had->second.files.shared &&
            (!has_id_ || is_own(had->second.folder)) &&
            proves((fs::path(path_) / had->second.folder).string(), had->second.files.data))
            files.push_back((fs::path(path_) / had->second.folder / had->second.files.data).string());
    }
    if (lines.empty()) return success();
    TWR_CHECK(add(lines));
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end()) continue;
        forget_data(had->second.files);
    }
    sure_ = true;
    for (const std::string& file : files)
        static_cast<void>(system().remove(file));
    return success();
}

}  // namespace twinrun
