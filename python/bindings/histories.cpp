// Histories as they lie on storage.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <set>
#include <string>

#include "capture/session.hpp"
#include "history/flush.hpp"
#include "history/history.hpp"
#include "history/others.hpp"
#include "history/part.hpp"
#include "history/unnamed.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

using Ranks = nb::typed<nb::list, RankFiles>;

struct PyHistoryStep {
    std::int64_t step;
    std::string folder;
    Ranks ranks;  // made once
};
using Steps = nb::typed<nb::list, PyHistoryStep>;

struct PyHistory {
    History history;  // whose steps have gone into these
    Steps steps;
    std::optional<LocalHistory> local;
};

PyHistory open_history(const std::filesystem::path& path) {
    HistoryPart part = take(open_history_or_part(path.native()));
    nb::list steps;
    for (HistoryStep& step : part.history.steps) {
        nb::list ranks;
        for (RankFiles& files : step.ranks)
            ranks.append(nb::cast(std::move(files)));
        steps.append(nb::cast(PyHistoryStep{step.step, std::move(step.folder), Ranks(ranks)}));
    }
    part.history.steps.clear();
    return {std::move(part.history), Steps(steps), std::move(part.local)};
}

struct PyFlushed {
    FlushFacts facts;
    std::vector<LostStep> lost;
};

using RankFilesState = std::tuple<std::uint32_t, std::string, std::uint64_t, std::string, std::uint64_t,
                                  std::uint64_t, double, std::uint32_t, std::uint64_t, bool, std::uint64_t,
                                  std::uint64_t, std::string, std::optional<std::uint64_t>>;

void define_rank_files(nb::module_& m) {
    using F = RankFiles;
    nb::class_<F>(m, "RankFiles",
                  "A rank's files of a step: names in the step's folder, and what they must be.")
        .def_ro("rank", &F::rank)
        .def_ro("data", &F::data, "'': only metadata is kept.")
        .def_ro("data_bytes", &F::data_bytes)
        .def_ro("metadata", &F::metadata, "'': of files that were packed as they were.")
        .def_ro("metadata_bytes", &F::metadata_bytes)
        .def_ro("header_xxh3", &F::header_checksum)
        .def_ro("blocked_seconds", &F::blocked_seconds)
        .def_prop_ro(
            "difference",
            [](const F& f) { return f.difference == kNoBase ? std::nullopt : std::optional(f.difference); },
            "Of a record: the number of the difference that `data` is.")
        .def_prop_ro(
            "full_bytes", [](const F& f) { return f.difference == kNoBase ? f.data_bytes : f.full_bytes; },
            "Of the step, whatever a record takes for it.")
        .def_ro("divergence", &F::divergence)
        .def_ro("offset", &F::offset, "Where this rank's part of a file begins that ranks share.")
        .def_prop_ro(
            "file_bytes", [](const F& f) { return f.shared ? f.file_bytes : f.data_bytes; },
            "Of the whole data file.")
        // Other processes are sent what they are to open, and ask whether it is still so.
        .def(
            "__eq__", [](const F& a, const F& b) { return a == b; }, nb::is_operator(),
            nb::sig("def __eq__(self, arg: object, /) -> bool"))
        .def("__getstate__",
             [](const F& f) {
                 return RankFilesState(f.rank, f.data, f.data_bytes, f.metadata, f.metadata_bytes,
                                       f.header_checksum, f.blocked_seconds, f.difference, f.full_bytes,
                                       f.shared, f.offset, f.file_bytes, f.divergence, f.difference_checksum);
             })
        .def("__setstate__", [](F& self, const RankFilesState& state) {
            std::apply([&](auto... part) { new (&self) F{std::move(part)...}; }, state);
        });
}

void define_history(nb::module_& m) {
    nb::class_<RankProvenance>(m, "RankProvenance", "Facts of one process that wrote to a history.")
        .def_ro("rank", &RankProvenance::rank)
        .def_prop_ro("json", [](const RankProvenance& self) { return provenance_to_json(self.facts); });
    define_rank_files(m);
    nb::class_<PyHistoryStep>(m, "HistoryStep")
        .def_ro("step", &PyHistoryStep::step)
        .def_ro("folder", &PyHistoryStep::folder, "In the history's.")
        .def_ro("ranks", &PyHistoryStep::ranks);
    nb::class_<PyHistory> history(m, "History", "What a history's manifest and journals say.");
    const auto add = [&](const char* name, auto get) {
        history.def_prop_ro(name, [get](const PyHistory& self) { return get(self.history); });
    };
    const auto local = [&](const char* name, auto get, const char* said) {
        history.def_prop_ro(
            name,
            [get](const PyHistory& self) -> std::optional<decltype(get(*self.local))> {
                if (!self.local) return std::nullopt;
                return get(*self.local);
            },
            said);
    };
    history.def_prop_ro("path", [](const PyHistory& self) { return file_text(self.history.path); });
    add("atol", [](const History& h) { return h.settings.tolerance.atol; });
    add("rtol", [](const History& h) { return h.settings.tolerance.rtol; });
    add("residue_bits", [](const History& h) { return h.settings.residue_bits; });
    add("chunk_bytes", [](const History& h) { return h.settings.chunk_bytes; });
    add("digest", [](const History& h) { return digest_name(h.settings.kind); });
    add("keep_data", [](const History& h) { return h.settings.keep_data; });
    add("record", [](const History& h) { return h.settings.record; });
    add("torn", [](const History& h) { return h.torn; });
    add("ranks", [](const History& h) { return h.ranks; });
    local(
        "local_part", [](const LocalHistory& l) { return l.rank; },
        "Of one rank's part on a node-local tier: whose.");
    local(
        "to", [](const LocalHistory& l) { return file_text(l.history); },
        "Of such a part: the history that it goes to.");
    add("incomplete", [](const History& h) { return h.incomplete; });
    add("provenance", [](const History& h) { return h.provenance; });
    history.def_ro("steps", &PyHistory::steps);
    history.def(
        "entries_of_others",
        [](const PyHistory& self) {
            std::set<std::string> known;
            for (const nb::handle step : self.steps)
                known.insert(nb::cast<const PyHistoryStep&>(step).folder);
            const auto look = [&] {
                const nb::gil_scoped_release unlocked;
                return entries_of_others(self.history, known);
            };
            return take(look());
        },
        "Journals and folders of steps that are another history's. Of the folders that journals name, only "
        "the first one is looked at.");
}

}  // namespace

void define_histories(nb::module_& m) {
    m.def("history_exists", &History::exists);
    define_history(m);
    m.def("open_history", &open_history, "path"_a);
    nb::class_<UnnamedStep>(m, "UnnamedStep", "Whole files of a rank's step that its journal does not name.")
        .def_ro("step", &UnnamedStep::step)
        .def_ro("rank", &UnnamedStep::rank)
        .def_prop_ro(
            "folder", [](const UnnamedStep& self) { return self.folder; }, "In the history's.")
        .def_prop_ro("journal", [](const UnnamedStep& self) { return file_text(self.journal); })
        .def_ro("lost", &UnnamedStep::lost, "The journal is missing or empty; else it may have been cut.");
    m.def(
        "unnamed_steps",
        [](const std::filesystem::path& path) {
            const auto look = [&] {
                const nb::gil_scoped_release unlocked;
                return unnamed_steps(path.native());
            };
            return take(look());
        },
        "path"_a);
    m.def(
        "entries_of_others",
        [](const std::filesystem::path& path) {
            const auto look = [&] {
                const nb::gil_scoped_release unlocked;
                return entries_of_others(path.native());
            };
            return take(look());
        },
        "path"_a, "Journals and folders of steps that are another history's; all folders are looked at.");
    nb::class_<PyFlushed>(m, "Flushed", "What a flush brought to the history.")
        .def_prop_ro(
            "steps", [](const PyFlushed& self) { return self.facts.steps; }, "How many.")
        .def_prop_ro("bytes", [](const PyFlushed& self) { return self.facts.bytes; })
        .def_ro("lost", &PyFlushed::lost, "The steps that stay where they are, and why.");
    m.def(
        "flush",
        [](const std::string& local, const std::string& history, const std::string& id) {
            std::vector<LostStep> lost;
            const auto run = [&] {
                const nb::gil_scoped_release unlocked;
                return flush_folder(
                    posix_file_system(), local, history,
                    [&](std::int64_t step, const Error& error) {
                        lost.push_back({step, error});
                    },
                    id);
            };
            const FlushFacts facts = take(run());
            return PyFlushed{facts, std::move(lost)};
        },
        "local"_a, "history"_a, "id"_a = "");
    m.def(
        "id_of_parts",
        [](const std::vector<std::string>& parts, const std::string& history) {
            return take(id_of_parts(parts, history));
        },
        "parts"_a, "history"_a);
}

}  // namespace twinrun
