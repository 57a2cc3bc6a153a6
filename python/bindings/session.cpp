// Sessions of running programs, and the fields that they capture.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "capture/session.hpp"
#include "shared.hpp"
#include "source/device_array.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

std::vector<CapturedField> captured_fields(const nb::list& fields) {
    std::vector<CapturedField> captured;
    for (nb::handle entry : fields) {
        const nb::tuple t = nb::cast<nb::tuple>(entry);
        CapturedField f;
        f.name = nb::cast<std::string>(t[0]);
        f.dtype = parse_dtype(nb::cast<std::string>(t[1]));
        f.shape = nb::cast<std::vector<std::uint64_t>>(t[2]);
        f.data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(t[3]));
        f.stride = nb::cast<std::uint64_t>(t[4]);
        f.order = nb::cast<bool>(t[5]) ? ArrayOrder::column_major : ArrayOrder::row_major;
        f.own_tolerance = !t[6].is_none();
        if (f.own_tolerance) f.tolerance = {nb::cast<double>(t[6]), nb::cast<double>(t[7])};
        if (!t[8].is_none()) {
            const auto [device, strides, stream, swap] =
                nb::cast<std::tuple<int, std::vector<std::int64_t>, std::uintptr_t, bool>>(t[8]);
            f.device =
                device_array(f.dtype, f.shape, strides, nb::cast<std::uintptr_t>(t[3]), device, stream, swap);
            f.data = nullptr;
            f.stride = 0;
        }
        f.ids = nb::cast<std::string>(t[9]);
        f.global_shape = nb::cast<std::vector<std::uint64_t>>(t[10]);
        f.global_offset = nb::cast<std::vector<std::uint64_t>>(t[11]);
        if (f.order == ArrayOrder::column_major) {  // here as the caller indexes them
            for (auto* numbers : {&f.shape, &f.global_shape, &f.global_offset})
                std::reverse(numbers->begin(), numbers->end());
        }
        captured.push_back(std::move(f));
    }
    return captured;
}

namespace {

nb::dict divergence_dict(const Divergence& d) {
    nb::dict out;
    out["step"] = d.step;
    out["rank"] = d.rank;
    out["field"] = d.field;
    out["first_item"] = d.first_item;
    out["chunks"] = d.chunks;
    out["chunks_in_all"] = d.chunks_in_all;
    out["fields"] = d.fields;
    out["reason"] = d.reason;
    out["text"] = describe(d);
    return out;
}

// A run's session. Settings are text by name, as the C interface has them.
struct PySession {
    SelfComm comm;
    std::unique_ptr<Session> session;

    PySession(const std::string& path, const std::map<std::string, std::string>& settings,
              const std::map<std::string, std::map<std::string, std::string>>& facts) {
        SessionSettings chosen;
        for (const auto& [name, value] : settings)
            take(chosen.set(name, value));
        chosen.provenance = collect_provenance();
        for (const auto& [group, own] : facts) {
            for (const auto& [name, value] : own)
                chosen.provenance.groups[group][name] = value;
        }
        auto open = [&] {
            const nb::gil_scoped_release unlocked;
            return Session::open(posix_file_system(), comm, path, std::move(chosen));
        };
        session = take(open());
    }
    // Its threads may be waiting for Python's lock, to tell of a divergence.
    ~PySession() {
        const nb::gil_scoped_release unlocked;
        session.reset();
    }
    PySession(const PySession&) = delete;
    PySession& operator=(const PySession&) = delete;
    nb::dict capture(std::int64_t step, const nb::list& fields) {
        std::vector<CapturedField> captured = captured_fields(fields);
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->capture_fields(step, std::move(captured));
        };
        const CaptureReport report = take(run());
        nb::dict d;
        d["step"] = report.step;
        d["seconds"] = report.seconds;
        d["waited_seconds"] = report.waited_seconds;
        d["data_bytes"] = report.data_bytes;
        d["metadata_bytes"] = report.metadata_bytes;
        d["staged_bytes"] = report.staged_bytes;
        d["divergence"] = report.divergence ? nb::object(divergence_dict(*report.divergence)) : nb::none();
        d["lost"] = lost_list(report.lost);
        return d;
    }
    nb::list wait() {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->wait();
        };
        return lost_list(take(run()));
    }
    nb::list close() {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->close();
        };
        return lost_list(take(run()));
    }
    std::optional<std::int64_t> latest(std::int64_t not_after) {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->latest(not_after);
        };
        return take(run());
    }
    void restore(std::int64_t step, const nb::list& fields) {
        std::vector<CapturedField> into = captured_fields(fields);
        const auto run = [&]() -> Result<> {
            const nb::gil_scoped_release unlocked;
            return session->restore_fields(step, into);
        };
        take(run());
    }
    // {name: {dtype, shape, fortran_order}} of a step's fields: all, in the order of capture, or those named.
    nb::dict stored_fields(std::int64_t step, const std::optional<std::vector<std::string>>& names) {
        const auto stored = take(session->stored(step));
        nb::dict fields;
        const auto add = [&](const FieldMetadata& field) {
            nb::dict d;
            d["dtype"] = std::string(dtype_name(field.dtype));
            d["shape"] = nb::tuple(shape_list(field.shape));
            d["fortran_order"] = field.order == ArrayOrder::column_major;
            fields[nb::str(field.name.data(), field.name.size())] = d;
        };
        if (!names) {
            for (const FieldMetadata& field : stored->directory().fields)
                add(field);
            return fields;
        }
        for (const std::string& name : *names) {
            const auto number = stored->find(name);
            if (!number) {
                raise({ErrorCode::not_found, session->path() + ": step " + std::to_string(step) +
                                                 ": no field of the name '" + name + "'"});
            }
            add(stored->directory().fields[*number]);
        }
        return fields;
    }
    void on_divergence(nb::object call) {
        // Called from threads of the session's, which do not hold Python's lock.
        auto shared = std::shared_ptr<nb::object>(new nb::object(std::move(call)), [](nb::object* o) {
            const nb::gil_scoped_acquire locked;
            delete o;
        });
        session->on_divergence([shared](const Divergence& d) {
            const nb::gil_scoped_acquire locked;
            try {
                (*shared)(divergence_dict(d));
            } catch (nb::python_error& e) {
                e.discard_as_unraisable("twinrun: on_divergence");
            }
        });
    }
};

}  // namespace

void define_sessions(nb::module_& m) {
    nb::class_<PySession>(m, "Session")
        .def(nb::init<const std::string&, const std::map<std::string, std::string>&,
                      const std::map<std::string, std::map<std::string, std::string>>&>(),
             "path"_a, "settings"_a, "facts"_a)
        .def("capture", &PySession::capture, "step"_a, "fields"_a)
        .def("wait", &PySession::wait)
        .def("close", &PySession::close)
        .def("latest", &PySession::latest, "not_after"_a)
        .def("restore", &PySession::restore, "step"_a, "fields"_a)
        .def("stored_fields", &PySession::stored_fields, "step"_a, "names"_a.none())
        .def("on_divergence", &PySession::on_divergence, "call"_a)
        .def_prop_ro("committed", [](const PySession& self) { return self.session->committed(); })
        .def_prop_ro("local_only", [](const PySession& self) { return self.session->local_only(); })
        .def_prop_ro("facts", [](const PySession& self) {
            const SessionFacts facts = self.session->facts();
            nb::dict d;
            d["captured"] = facts.captured;
            d["committed"] = facts.committed;
            d["lost"] = facts.lost;
            d["most_staged_bytes"] = facts.most_staged_bytes;
            d["flushed_bytes"] = facts.flushed_bytes;
            return d;
        });
}

}  // namespace twinrun
