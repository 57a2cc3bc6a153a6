// Sessions of running programs, and the fields that they capture.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "capture/session.hpp"
#include "platform/turns.hpp"
#include "shared.hpp"
#include "source/device_array.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// Shapes and the offset: slowest dimension first, as FieldMetadata has them.
CapturedField captured_field(std::string name, const std::string& dtype, std::vector<std::uint64_t> shape,
                             std::uintptr_t address, std::uint64_t stride, bool fortran_order,
                             const std::optional<Tolerance>& tolerance, std::optional<int> device,
                             std::vector<std::int64_t> strides, std::uintptr_t stream, bool swap,
                             std::string ids, std::vector<std::uint64_t> global_shape,
                             std::vector<std::uint64_t> global_offset) {
    CapturedField f;
    f.name = std::move(name);
    f.dtype = parse_dtype(dtype);
    f.shape = std::move(shape);
    f.order = fortran_order ? ArrayOrder::column_major : ArrayOrder::row_major;
    f.own_tolerance = tolerance.has_value();
    if (tolerance) f.tolerance = *tolerance;
    if (device) {
        f.device = device_array(f.dtype, f.shape, std::move(strides), address, *device, stream, swap);
    } else {
        f.data = reinterpret_cast<const void*>(address);
        f.stride = stride;
    }
    f.ids = std::move(ids);
    f.global_shape = std::move(global_shape);
    f.global_offset = std::move(global_offset);
    if (f.order == ArrayOrder::column_major) {  // here as the caller indexes them
        for (auto* numbers : {&f.shape, &f.global_shape, &f.global_offset})
            std::reverse(numbers->begin(), numbers->end());
    }
    return f;
}

void define_captured_field(nb::module_& m) {
    nb::class_<CapturedField>(
        m, "CapturedField", "An array to capture, to sketch or to restore. Its memory must outlive its use.")
        .def(
            "__init__",
            [](CapturedField* self, std::string name, const std::string& dtype,
               std::vector<std::uint64_t> shape, std::uintptr_t address, std::uint64_t stride,
               bool fortran_order, const std::optional<Tolerance>& tolerance, std::optional<int> device,
               std::vector<std::int64_t> strides, std::uintptr_t stream, bool swap, std::string ids,
               std::vector<std::uint64_t> global_shape, std::vector<std::uint64_t> global_offset) {
                new (self) CapturedField(captured_field(std::move(name), dtype, std::move(shape), address,
                                                        stride, fortran_order, tolerance, device,
                                                        std::move(strides), stream, swap, std::move(ids),
                                                        std::move(global_shape), std::move(global_offset)));
            },
            nb::kw_only(), "name"_a, "dtype"_a, "shape"_a, "address"_a, "stride"_a = std::uint64_t{0},
            "fortran_order"_a = false, "tolerance"_a = nb::none(), "device"_a = nb::none(),
            "strides"_a = std::vector<std::int64_t>(), "stream"_a = std::uintptr_t{0}, "swap"_a = false,
            "ids"_a = "", "global_shape"_a = std::vector<std::uint64_t>(),
            "global_offset"_a = std::vector<std::uint64_t>(),
            "shape, global_shape, global_offset: slowest dimension first, so reversed if fortran_order is "
            "set.\n"
            "stride: bytes between items; 0: dense. tolerance: its own; None: the run's. ids: the field of "
            "its "
            "rows' IDs, or ''.\ndevice: where the memory is on a device; then strides (bytes), stream and "
            "swap hold, and stride does not.")
        .def_prop_ro("name", [](const CapturedField& self) { return self.name; });
}

void define_captured_fields(nb::module_& m) {
    nb::class_<CapturedFields>(m, "CapturedFields", "The arrays of a step. A capture takes them away.")
        .def(
            "__init__",
            [](CapturedFields* self, std::vector<CapturedField> fields) {
                new (self) CapturedFields{std::move(fields)};
            },
            "fields"_a)
        .def("__len__", [](const CapturedFields& self) { return self.fields.size(); })
        .def(
            "insert",
            [](CapturedFields& self, std::size_t at, const CapturedField& field) {
                self.fields.insert(
                    self.fields.begin() + static_cast<std::ptrdiff_t>(std::min(at, self.fields.size())),
                    field);
            },
            "at"_a, "field"_a, "Before the field of this number; at the end where there is none.")
        .def(
            "remove",
            [](CapturedFields& self, const std::set<std::string>& names) {
                std::erase_if(self.fields, [&](const CapturedField& f) { return names.contains(f.name); });
            },
            "names"_a)
        .def_prop_ro("names",
                     [](const CapturedFields& self) {
                         nb::typed<nb::list, nb::str> names;
                         for (const CapturedField& f : self.fields)
                             names.append(nb::str(f.name.data(), f.name.size()));
                         return names;
                     })
        .def_prop_ro(
            "has_labels",
            [](const CapturedFields& self) {
                return std::any_of(self.fields.begin(), self.fields.end(), [](const CapturedField& f) {
                    return f.name.find('@') != std::string::npos;
                });
            },
            "Whether a name may be that of a label: see formats.model.")
        .def(
            "shapes",
            [](const CapturedFields& self) {
                nb::typed<nb::dict, nb::str, nb::tuple> shapes;
                for (const CapturedField& f : self.fields)
                    shapes[nb::str(f.name.data(), f.name.size())] =
                        shape_tuple(stored_shape(f.shape, f.order));
                return shapes;
            },
            "By name.");
}

// A field of a committed step.
struct StoredField {
    DType dtype;
    std::vector<std::uint64_t> shape;  // slowest dimension first
    bool fortran_order;
};
using StoredFields = nb::typed<nb::dict, nb::str, StoredField>;

void define_reports(nb::module_& m) {
    nb::class_<StoredField>(m, "StoredField", "A field of a committed step. shape: slowest dimension first.")
        .def_prop_ro("dtype", [](const StoredField& self) { return std::string(dtype_name(self.dtype)); })
        .def_prop_ro("shape", [](const StoredField& self) { return shape_tuple(self.shape); })
        .def_ro("fortran_order", &StoredField::fortran_order);
    nb::class_<Divergence>(m, "Divergence",
                           "Where a step is not proven equal to the same step of the reference.")
        .def_ro("step", &Divergence::step)
        .def_ro("rank", &Divergence::rank)
        .def_ro("field", &Divergence::field)
        .def_ro("first_item", &Divergence::first_item)
        .def_ro("chunks", &Divergence::chunks)
        .def_ro("chunks_in_all", &Divergence::chunks_in_all)
        .def_ro("fields", &Divergence::fields)
        .def_ro("reason", &Divergence::reason)
        .def_prop_ro("text", [](const Divergence& self) { return describe(self); });
    nb::class_<LostStep>(m, "LostStep", "A step that was accepted and is not committed.")
        .def_ro("step", &LostStep::step)
        .def_prop_ro("reason", [](const LostStep& self) { return readable_text(self.error.message); });
    nb::class_<CaptureReport>(m, "CaptureReport", "What one capture cost.")
        .def_ro("step", &CaptureReport::step)
        .def_ro("seconds", &CaptureReport::seconds)
        .def_ro("waited_seconds", &CaptureReport::waited_seconds)
        .def_ro("data_bytes", &CaptureReport::data_bytes)
        .def_ro("metadata_bytes", &CaptureReport::metadata_bytes)
        .def_ro("staged_bytes", &CaptureReport::staged_bytes)
        .def_ro("divergence", &CaptureReport::divergence)
        .def_ro("lost", &CaptureReport::lost);
    nb::class_<SessionFacts>(m, "SessionFacts", "What a session has done so far.")
        .def_ro("captured", &SessionFacts::captured)
        .def_ro("committed", &SessionFacts::committed)
        .def_ro("lost", &SessionFacts::lost)
        .def_ro("most_staged_bytes", &SessionFacts::most_staged_bytes)
        .def_ro("flushed_bytes", &SessionFacts::flushed_bytes);
}

// Ranks of one run that this process plays one after another: each session that is made with it is
// the next rank.
struct PyTurns {
    std::shared_ptr<Turns> turns = std::make_shared<Turns>();
    int ranks;
    int begun = 0;

    explicit PyTurns(int count) : ranks(count) {
        if (count < 1) raise({ErrorCode::invalid_argument, "ranks: at least 1"});
    }
    std::unique_ptr<Comm> next() {
        if (begun == ranks) raise({ErrorCode::invalid_argument, "every rank has had its turn"});
        return std::make_unique<TurnComm>(turns, begun++, ranks);
    }
};

// The processes of a run, which exchange by functions of Python: minimum(values) gives the smallest
// value of all processes at each place, broadcast(bytes) the bytes of rank 0.
class CallingComm final : public Comm {
   public:
    CallingComm(int rank, int size, nb::object minimum, nb::object broadcast)
        : rank_(rank), size_(size), minimum_(std::move(minimum)), broadcast_(std::move(broadcast)) {}
    ~CallingComm() override {
        const nb::gil_scoped_acquire lock;
        minimum_.reset();
        broadcast_.reset();
    }
    CallingComm(const CallingComm&) = delete;
    CallingComm& operator=(const CallingComm&) = delete;
    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }
    Result<> minimum(std::span<std::int64_t> values) override {
        return called("minimum", [&] {
            const auto found = nb::cast<std::vector<std::int64_t>>(
                minimum_(std::vector<std::int64_t>(values.begin(), values.end())));
            if (found.size() != values.size()) throw nb::value_error("another number of values");
            std::copy(found.begin(), found.end(), values.begin());
        });
    }
    Result<> broadcast(std::span<std::byte> bytes) override {
        return called("broadcast", [&] {
            const auto found = nb::cast<nb::bytes>(broadcast_(nb::bytes(bytes.data(), bytes.size())));
            if (found.size() != bytes.size()) throw nb::value_error("another number of bytes");
            std::memcpy(bytes.data(), found.data(), bytes.size());
        });
    }

   private:
    template <class Call>
    Result<> called(const char* what, const Call& call) {
        const nb::gil_scoped_acquire lock;
        try {
            call();
            return success();
        } catch (nb::python_error& e) {
            return failure(what, nb::cast<std::string>(nb::str(e.value())));
        } catch (const std::exception& e) {
            return failure(what, e.what());
        }
    }
    [[nodiscard]] Error failure(const char* what, const std::string& why) const {
        return Error{ErrorCode::io,
                     "rank " + std::to_string(rank_) + " cannot exchange (" + what + "): " + why};
    }
    int rank_;
    int size_;
    nb::object minimum_;
    nb::object broadcast_;
};

// The processes of a run; each makes one session with them.
struct PyRanks {
    int rank;
    int size;
    nb::object minimum;
    nb::object broadcast;
};

// The number that Python gave, if it is one that the type has. A truth value is no number.
template <class T>
std::optional<T> given_number(nb::handle value) {
    if (PyBool_Check(value.ptr())) return std::nullopt;
    if constexpr (std::is_floating_point_v<T>) {
        if (!PyFloat_Check(value.ptr())) return std::nullopt;
        return PyFloat_AsDouble(value.ptr());
    } else {
        if (PyIndex_Check(value.ptr()) == 0) return std::nullopt;
        const auto whole = nb::steal(PyNumber_Index(value.ptr()));
        if (!whole.is_valid()) throw nb::python_error();
        int overflow = 0;
        const long long number = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
        if (overflow != 0 || !std::in_range<T>(number)) return std::nullopt;
        return static_cast<T>(number);
    }
}

// Anything else is read as the text of a setting is: "1 GiB", or an error that quotes it.
template <class Member>
void set_number(SessionSettings& settings, const char* name, const Member& member, nb::handle value) {
    using T = std::remove_reference_t<decltype(member(settings))>;
    const nb::str told(value);
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(told.ptr(), &length);
    if (text == nullptr) throw nb::python_error();
    const std::string_view quoted(text, static_cast<std::size_t>(length));
    SessionSettings changed = settings;
    if (const auto number = given_number<T>(value)) {
        member(changed) = *number;
        take(changed.check(name, quoted));
    } else {
        take(changed.set(name, quoted));
    }
    settings = std::move(changed);
}

// What Python may give for a number, as the stub says it.
using Real = nb::typed<nb::object, double>;
using Whole = nb::typed<nb::object, std::int64_t>;
using Size = nb::typed<nb::object, std::variant<std::int64_t, std::string>>;

template <class Given, class Member>
void add_number(nb::class_<SessionSettings>& settings, const char* name, Member member) {
    settings.def_prop_rw(
        name, [member](SessionSettings& self) { return member(self); },
        [name, member](SessionSettings& self, const Given& value) { set_number(self, name, member, value); });
}

// One of a few words, which the core knows. word: that of the value.
template <class Word>
void add_word(nb::class_<SessionSettings>& settings, const char* name, Word word) {
    settings.def_prop_rw(
        name, [word](const SessionSettings& self) { return std::string(word(self)); },
        [name](SessionSettings& self, const std::string& value) { take(self.set(name, value)); });
}

void define_settings(nb::module_& m) {
    using S = SessionSettings;
    nb::class_<S> settings(
        m, "SessionSettings",
        "The settings of a session, with their names and limits in docs/reference/capture.md. A "
        "value outside of the limits is an error that names them.");
    settings.def(nb::init<>())
        .def(
            "set",
            [](S& self, const std::string& name, const std::string& value) { take(self.set(name, value)); },
            "name"_a, "value"_a, "Any setting by its name, as text.");
    add_number<Real>(
        settings, "atol", [](S & s) -> auto& { return s.history.tolerance.atol; });
    add_number<Real>(
        settings, "rtol", [](S & s) -> auto& { return s.history.tolerance.rtol; });
    add_number<Whole>(
        settings, "residue_bits", [](S & s) -> auto& { return s.history.residue_bits; });
    add_number<Whole>(
        settings, "chunk_bytes", [](S & s) -> auto& { return s.history.chunk_bytes; });
    add_number<Whole>(
        settings, "record_chunk", [](S & s) -> auto& { return s.record_settings.chunk_bytes; });
    add_number<Whole>(
        settings, "record_level", [](S & s) -> auto& { return s.record_settings.level; });
    add_number<Size>(
        settings, "record_table", [](S & s) -> auto& { return s.record_table_bytes; });
    add_number<Size>(
        settings, "memory", [](S & s) -> auto& { return s.memory_bytes; });
    add_number<Size>(
        settings, "device_memory", [](S & s) -> auto& { return s.device_bytes; });
    add_number<Size>(
        settings, "local_limit", [](S & s) -> auto& { return s.local_bytes; });
    add_number<Whole>(
        settings, "keep_steps", [](S & s) -> auto& { return s.keep.steps; });
    add_number<Whole>(
        settings, "keep_data_steps", [](S & s) -> auto& { return s.keep.data_steps; });
    add_number<Whole>(
        settings, "threads", [](S & s) -> auto& { return s.threads; });
    add_number<Whole>(
        settings, "flush_threads", [](S & s) -> auto& { return s.flush_threads; });
    add_word(settings, "digest", [](const S& s) { return digest_name(s.history.kind); });
    add_word(settings, "record", [](const S& s) { return s.record ? method_name(*s.record) : "off"; });
    add_word(settings, "record_compress",
             [](const S& s) { return s.record_settings.codec == PayloadCodec::zstd ? "zstd" : "none"; });
    add_word(settings, "existing", [](const S& s) {
        return s.existing == Existing::refuse   ? "refuse"
               : s.existing == Existing::append ? "append"
                                                : "replace";
    });
    add_word(settings, "flusher", [](const S& s) {
        return s.flusher == Flusher::thread ? "thread" : s.flusher == Flusher::process ? "process" : "none";
    });
    settings
        .def_prop_rw(
            "keep_data", [](const S& self) { return self.history.keep_data; },
            [](S& self, bool keep) { self.history.keep_data = keep; }, "The setting mode: full or digests.")
        .def_prop_rw(
            "record_xor", [](const S& self) { return self.record_settings.xored; },
            [](S& self, bool xored) { self.record_settings.xored = xored; })
        .def_prop_rw(
            "record_against", [](const S& self) { return self.record_settings.against; },
            [](S& self, std::string path) { self.record_settings.against = std::move(path); })
        .def_rw("local", &S::local)
        .def_rw("replace_steps", &S::replace_steps)
        .def_rw("background", &S::background)
        .def_rw("reference", &S::reference)
        .def_rw("stop_on_divergence", &S::stop_on_divergence);
}

// A run's session.
struct PySession {
    std::unique_ptr<Comm> comm;  // the session uses it
    std::unique_ptr<Session> session;

    // turns: the ranks of which this is the next one. ranks: the processes of which this is one.
    // Both null: a run of one rank.
    PySession(const std::string& path, SessionSettings chosen,
              const std::map<std::string, std::map<std::string, std::string>>& facts, PyTurns* turns,
              const PyRanks* ranks) {
        if (turns != nullptr)
            comm = turns->next();
        else if (ranks != nullptr)
            comm = std::make_unique<CallingComm>(ranks->rank, ranks->size, ranks->minimum, ranks->broadcast);
        else
            comm = std::make_unique<SelfComm>();
        chosen.provenance = collect_provenance();
        for (const auto& [group, own] : facts) {
            for (const auto& [name, value] : own)
                chosen.provenance.groups[group][name] = value;
        }
        auto open = [&] {
            const nb::gil_scoped_release unlocked;
            return Session::open(posix_file_system(), *comm, path, std::move(chosen));
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
    CaptureReport capture(std::int64_t step, CapturedFields& taken) {
        std::vector<CapturedField> fields = std::exchange(taken.fields, {});
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->capture_fields(step, std::move(fields));
        };
        return take(run());
    }
    std::vector<LostStep> wait() {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->wait();
        };
        return take(run());
    }
    std::vector<LostStep> close() {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->close();
        };
        return take(run());
    }
    std::optional<std::int64_t> latest(std::int64_t not_after) {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->latest(not_after);
        };
        return take(run());
    }
    void restore(std::int64_t step, std::vector<CapturedField> into) {
        const auto run = [&]() -> Result<> {
            const nb::gil_scoped_release unlocked;
            return session->restore_fields(step, into);
        };
        take(run());
    }
    // Of a step's fields: all, in the order of capture, or those named.
    StoredFields stored_fields(std::int64_t step, const std::optional<std::vector<std::string>>& names) {
        const auto stored = take(session->stored(step));
        StoredFields fields;
        const auto add = [&](const FieldMetadata& field) {
            fields[nb::str(field.name.data(), field.name.size())] =
                nb::cast(StoredField{field.dtype, field.shape, field.order == ArrayOrder::column_major});
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
                (*shared)(nb::cast(d));
            } catch (nb::python_error& e) {
                e.discard_as_unraisable("twinrun: on_divergence");
            }
        });
    }
};

}  // namespace

void define_sessions(nb::module_& m) {
    define_captured_field(m);
    define_captured_fields(m);
    define_reports(m);
    define_settings(m);
    nb::class_<PyTurns>(m, "Turns",
                        "Ranks of one run that this process plays one after another: each Session that is "
                        "made with it is the next rank, and is closed before the one after it is made.")
        .def(nb::init<int>(), "ranks"_a)
        .def_ro("begun", &PyTurns::begun);
    nb::class_<PyRanks>(m, "Ranks", "The processes of a run, of which this is one.")
        .def(
            "__init__",
            [](PyRanks* self, int rank, int size, nb::object minimum, nb::object broadcast) {
                if (size < 1 || rank < 0 || rank >= size)
                    raise({ErrorCode::invalid_argument, "rank must be below the number of ranks"});
                new (self) PyRanks{rank, size, std::move(minimum), std::move(broadcast)};
            },
            "rank"_a, "size"_a, nb::kw_only(), "minimum"_a, "broadcast"_a,
            "minimum(list of int) -> the smallest value of all processes at each place; broadcast(bytes) -> "
            "the bytes of rank 0. Every process calls them, in the same order.")
        .def_ro("rank", &PyRanks::rank)
        .def_ro("size", &PyRanks::size);
    nb::class_<PySession>(m, "Session")
        .def(nb::init<const std::string&, SessionSettings,
                      const std::map<std::string, std::map<std::string, std::string>>&, PyTurns*,
                      const PyRanks*>(),
             "path"_a, "settings"_a, "facts"_a, "turns"_a.none() = nb::none(), "ranks"_a.none() = nb::none())
        .def("capture", &PySession::capture, "step"_a, "fields"_a)
        .def("wait", &PySession::wait)
        .def("close", &PySession::close)
        .def("latest", &PySession::latest, "not_after"_a)
        .def("restore", &PySession::restore, "step"_a, "fields"_a)
        .def("stored_fields", &PySession::stored_fields, "step"_a, "names"_a.none())
        .def("on_divergence", &PySession::on_divergence, "call"_a)
        .def_prop_ro("committed", [](const PySession& self) { return self.session->committed(); })
        .def_prop_ro("local_only", [](const PySession& self) { return self.session->local_only(); })
        .def_prop_ro("facts", [](const PySession& self) { return self.session->facts(); });
}

}  // namespace twinrun
