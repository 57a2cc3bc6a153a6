// Manifests and journals from any lines: what is accepted is consistent, and leads nowhere out of
// the history. Lines that look like objects are given the checksum that belongs to them, or
// checksums would be all that is tested.
//
// An input is files one after another, each begun by a byte: 1 the manifest, 2 to 5 the journal of
// a rank, 0 to 3.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "folder.hpp"
#include "history/history.hpp"
#include "history/journal_line.hpp"
#include "input.hpp"

using namespace twinrun;

namespace {

namespace fs = std::filesystem;

const std::string& folder() {
    static const fuzz::Folder made("history");
    return made.name();
}

std::string sealed(const std::string& text) {
    std::string lines;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find('\n', begin);
        const std::string line = text.substr(begin, end == std::string::npos ? end : end - begin);
        const bool object =
            end != std::string::npos && line.size() >= 2 && line.front() == '{' && line.back() == '}';
        if (object) {
            const auto opened = open_line(seal_line(line));
            fuzz::require(opened.ok() && *opened == line);
        }
        lines += object ? seal_line(line) : line;
        if (end == std::string::npos) break;
        lines += '\n';
        begin = end + 1;
    }
    return lines;
}

void check_error(const Error& error) {
    fuzz::require(error.code == ErrorCode::damaged || error.code == ErrorCode::unsupported);
    fuzz::require(error.message.starts_with(folder()));
}

void check_name(const std::string& name) {
    fuzz::require(name != "." && name != ".." && name.find('/') == std::string::npos &&
                  name.find('\0') == std::string::npos);
}

void check_files(const RankFiles& files, const std::string& step_folder) {
    for (const std::string& name : {files.data, files.metadata, step_folder})
        check_name(name);
    static_cast<void>(attempt_of(step_folder));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::array<std::string, 5> texts;
    std::size_t at = 0;
    for (std::size_t i = 0; i < size; ++i) {
        if (data[i] >= 1 && data[i] <= texts.size()) {
            at = data[i] - 1U;
        } else {
            texts[at] += static_cast<char>(data[i]);
        }
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const std::string path =
            i == 0 ? manifest_path(folder()) : journal_path(folder(), static_cast<std::uint32_t>(i - 1), 4);
        std::ofstream(path, std::ios::binary | std::ios::trunc) << sealed(texts[i]);
    }
    const auto history = History::open(folder());
    if (history.ok()) {
        const History& h = *history.operator->();
        std::int64_t before = INT64_MIN;
        for (const HistoryStep& step : h.steps) {
            fuzz::require(&step == h.steps.data() || step.step > before);
            before = step.step;
            fuzz::require(step.ranks.size() == h.ranks);
            for (std::size_t r = 0; r < step.ranks.size(); ++r) {
                fuzz::require(step.ranks[r].rank == r);
                check_files(step.ranks[r], step.folder);
            }
        }
        for (const RankProvenance& facts : h.provenance)
            fuzz::require(facts.rank < h.ranks);
    } else {
        check_error(history.error());
    }
    const auto local = LocalHistory::read(folder());
    if (local.ok()) {
        fuzz::require(local->rank < local->ranks);
        for (const auto& [step, entry] : local->journal.steps) {
            fuzz::require(entry.files.rank == local->rank);
            check_files(entry.files, entry.folder);
        }
    } else {
        check_error(local.error());
    }
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        const auto journal = read_rank_journal(folder(), rank, 4);
        if (!journal.ok()) {
            check_error(journal.error());
            continue;
        }
        fuzz::require(journal->whole_bytes <= fs::file_size(journal_path(folder(), rank, 4)));
        for (const auto& [step, entry] : journal->steps) {
            check_files(entry.files, entry.folder);
            if (entry.files.difference == kNoBase) continue;
            fuzz::require(journal->taken.contains(entry.files.difference));
            fuzz::require(entry.files.difference < journal->next_difference);
        }
        for (const auto& [ordinal, place] : journal->differences) {
            fuzz::require(ordinal < journal->next_difference);
            const std::string& file = place.file;
            const std::size_t cut = file.find('/');
            fuzz::require(cut != std::string::npos && cut != 0);
            check_name(file.substr(0, cut));
            check_name(file.substr(cut + 1));
        }
    }
    return 0;
}
