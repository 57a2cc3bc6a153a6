// Histories as they lie on storage.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <filesystem>

#include "capture/session.hpp"
#include "history/flush.hpp"
#include "history/history.hpp"
#include "history/part.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

nb::dict history_dict(const std::filesystem::path& path) {
    const HistoryPart part = take(open_history_or_part(path.native()));
    const History& h = part.history;
    const auto& local = part.local;
    nb::dict d;
    d["path"] = file_text(h.path);
    d["atol"] = h.settings.tolerance.atol;
    d["rtol"] = h.settings.tolerance.rtol;
    d["residue_bits"] = h.settings.residue_bits;
    d["chunk_bytes"] = h.settings.chunk_bytes;
    d["digest"] = h.settings.kind == DigestKind::linear ? "linear" : "published";
    d["keep_data"] = h.settings.keep_data;
    d["record"] = h.settings.record ? nb::object(record_dict(*h.settings.record)) : nb::object(nb::none());
    d["torn"] = h.torn;
    d["ranks"] = h.ranks;
    d["local_part"] = local ? nb::object(nb::int_(local->rank)) : nb::none();  // whose
    d["to"] = local ? file_text(local->history) : nb::none();
    d["incomplete"] = h.incomplete;
    nb::list provenance;
    for (const RankProvenance& p : h.provenance) {
        nb::dict one;
        one["rank"] = p.rank;
        one["json"] = provenance_to_json(p.facts);
        provenance.append(one);
    }
    d["provenance"] = provenance;
    nb::list steps;
    for (const HistoryStep& s : h.steps) {
        nb::dict step;
        step["step"] = s.step;
        step["folder"] = s.folder;
        nb::list ranks;
        for (const RankFiles& r : s.ranks) {
            nb::dict rank;
            rank["rank"] = r.rank;
            rank["data"] = r.data;
            rank["data_bytes"] = r.data_bytes;
            rank["metadata"] = r.metadata;
            rank["metadata_bytes"] = r.metadata_bytes;
            rank["header_xxh3"] = r.header_checksum;
            rank["blocked_seconds"] = r.blocked_seconds;
            rank["difference"] =
                r.difference == kNoBase ? nb::object(nb::none()) : nb::object(nb::int_(r.difference));
            rank["full_bytes"] = r.difference == kNoBase ? r.data_bytes : r.full_bytes;
            rank["divergence"] = r.divergence;
            // Of the data file: this rank's part of one that others share begins there.
            rank["offset"] = r.offset;
            rank["file_bytes"] = r.shared ? r.file_bytes : r.data_bytes;
            ranks.append(rank);
        }
        step["ranks"] = ranks;
        steps.append(step);
    }
    d["steps"] = steps;
    return d;
}

}  // namespace

void define_histories(nb::module_& m) {
    m.def("history_exists", &History::exists);
    m.def("open_history", &history_dict, "path"_a);
    m.def(
        "flush",
        [](const std::string& local, const std::string& history) {
            std::vector<LostStep> lost;
            const auto run = [&] {
                const nb::gil_scoped_release unlocked;
                return flush_folder(posix_file_system(), local, history,
                                    [&](std::int64_t step, const Error& error) {
                                        lost.push_back({step, error});
                                    });
            };
            const FlushFacts facts = take(run());
            return nb::make_tuple(facts.steps, facts.bytes, lost_list(lost));
        },
        "local"_a, "history"_a);
    m.def("local_history", [](const std::string& path) {
        const LocalHistory local = take(LocalHistory::read(path));
        return nb::make_tuple(local.rank, local.ranks, local.history);
    });
}

}  // namespace twinrun
