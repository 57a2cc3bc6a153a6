// Sketches: digests of arrays that stay where the arrays are, on a device or the host, and what two
// of them say.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>

#include "field_list.hpp"
#include "shared.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "sketch/host_sketch.hpp"
#include "sketch/sketch_stream.hpp"
#include "sketched_states.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace twinrun;

namespace {

constexpr int kHost = -1;  // as a device's number

struct PySketch {
    std::variant<HostSketch, DeviceSketch> sketch;

    [[nodiscard]] const DeviceSketch* on_device() const { return std::get_if<DeviceSketch>(&sketch); }
    [[nodiscard]] int device() const { return on_device() == nullptr ? kHost : on_device()->device(); }
    [[nodiscard]] const FieldMetadata& field() const {
        return std::visit([](const auto& s) -> const FieldMetadata& { return s.field(); }, sketch);
    }
    [[nodiscard]] std::uint64_t bytes() const {
        return std::visit([](const auto& s) { return s.bytes(); }, sketch);
    }
};

using Sketches = nb::typed<nb::list, PySketch>;

Sketches as_list(std::vector<std::optional<PySketch>>& sketches) {
    nb::list list;
    for (std::optional<PySketch>& s : sketches)
        list.append(nb::cast(std::move(*s)));
    return Sketches(list);
}

// The sketches of many fields, by the fields' numbers.
class MadeSketches {
   public:
    explicit MadeSketches(std::size_t fields = 0) : places_(fields), objects_(fields) {}

    void put(std::size_t number, HostSketch sketch) {
        objects_[number] = std::make_unique<PySketch>(PySketch{std::move(sketch)});
    }
    void put(const std::vector<std::size_t>& numbers, SketchGroup group) {
        for (std::size_t i = 0; i < numbers.size(); ++i)
            places_[numbers[i]] = {groups_.size(), i};
        groups_.push_back(std::move(group));
    }
    [[nodiscard]] std::size_t size() const { return objects_.size(); }
    // Made where it is asked for first. Not for several threads at a time.
    std::unique_ptr<PySketch>& at(std::size_t number) {
        std::unique_ptr<PySketch>& object = objects_[number];
        if (object == nullptr) {
            const Place& place = places_[number];
            object = std::make_unique<PySketch>(PySketch{groups_[place.group].at(place.index)});
        }
        return object;
    }

   private:
    struct Place {
        std::size_t group = 0;
        std::size_t index = 0;
    };
    std::vector<Place> places_;
    std::vector<SketchGroup> groups_;
    std::vector<std::unique_ptr<PySketch>> objects_;  // null: not asked for
};

// Sketches of fields, made while more fields are added: those on devices in groups, the others
// together at the end. Used by one thread at a time, with or without the lock.
class SketchMaker {
   public:
    SketchMaker(const HistorySettings& settings, int threads)
        : settings_(settings), options_(stream_options(threads, 1 << 28, "auto", nb::none())) {}

    // number: of the field, below that of finish(); each once. The elements must stay until
    // finish(), or the end.
    Result<> add(std::size_t number, const CapturedField& field) {
        TWR_TRY(FieldMetadata planned, plan_captured(field, settings_));
        if (field.device) return on(field.device->device).add(number, std::move(planned), *field.device);
        const std::uint64_t stride = field.stride == 0 ? item_bytes(field.dtype) : field.stride;
        on_host_.push_back({number, std::move(planned), field.data, stride});
        return success();
    }
    // The same for all fields of a plan, by their numbers.
    Result<> repeat(const PlannedOnDevice& known) { return on(known.device).repeat(known.planned); }
    // Whether add() or repeat() on this device may wait.
    [[nodiscard]] bool is_full(int device) const {
        const auto known = on_devices_.find(device);
        return known != on_devices_.end() && known->second.is_full();
    }
    // All were added. Makes what is on the host, while devices work.
    Result<> start() {
        for (auto& [device, stream] : on_devices_)
            TWR_CHECK(stream.start());
        std::vector<MemorySource> sources;
        std::vector<const FieldMetadata*> fields;
        std::vector<ElementSource*> elements;
        sources.reserve(on_host_.size());  // pointers to these are kept
        for (const OnHost& f : on_host_) {
            sources.emplace_back(f.planned.dtype, f.planned.items(), f.data, f.stride, false);
            fields.push_back(&f.planned);
            elements.push_back(&sources.back());
        }
        TWR_TRY(host_sketches_, HostSketch::build(fields, elements, options_));
        return success();
    }
    // After start(): waits for devices. fields: how many were added.
    Result<MadeSketches> finish(std::size_t fields) {
        for (auto& [device, stream] : on_devices_)
            TWR_CHECK(stream.finish());
        MadeSketches made(fields);
        for (auto& [numbers, group] : groups_)
            made.put(numbers, std::move(group));
        for (std::size_t i = 0; i < on_host_.size(); ++i)
            made.put(on_host_[i].number, std::move(host_sketches_[i]));
        return made;
    }
    // All that was started on devices.
    [[nodiscard]] std::vector<PlannedOnDevice> planned() const {
        std::vector<PlannedOnDevice> all;
        for (const auto& [device, stream] : on_devices_) {
            for (const SketchStream::Planned& one : stream.planned())
                all.push_back({device, one});
        }
        return all;
    }

   private:
    SketchStream& on(int device) {
        return on_devices_
            .try_emplace(device,
                         [this](const std::vector<std::size_t>& numbers, SketchGroup sketches) {
                             groups_.emplace_back(numbers, std::move(sketches));
                         })
            .first->second;
    }
    struct OnHost {
        std::size_t number;
        FieldMetadata planned;
        const void* data;
        std::uint64_t stride;
    };
    HistorySettings settings_;
    StreamOptions options_;
    std::vector<std::pair<std::vector<std::size_t>, SketchGroup>> groups_;
    std::map<int, SketchStream> on_devices_;
    std::vector<OnHost> on_host_;
    std::vector<HostSketch> host_sketches_;
};

HistorySettings sketch_settings(double atol, double rtol, unsigned residue_bits, std::uint32_t chunk_bytes,
                                const std::string& digest) {
    HistorySettings settings;
    settings.tolerance = {atol, rtol};
    settings.residue_bits = residue_bits;
    settings.chunk_bytes = chunk_bytes;
    settings.kind = parse_digest(digest);
    return settings;
}

Sketches sketch_fields(const CapturedFields& fields, double atol, double rtol, unsigned residue_bits,
                       std::uint32_t chunk_bytes, const std::string& digest, int threads, bool tokens) {
    HistorySettings settings = sketch_settings(atol, rtol, residue_bits, chunk_bytes, digest);
    if (tokens) settings.tokens = Tokens::but_binary32;
    SketchMaker maker(settings, threads);
    const auto work = [&]() -> Result<MadeSketches> {
        for (std::size_t at = 0; at < fields.fields.size(); ++at)
            TWR_CHECK(maker.add(at, fields.fields[at]));
        TWR_CHECK(maker.start());
        return maker.finish(fields.fields.size());
    };
    std::optional<Result<MadeSketches>> made;
    {
        const nb::gil_scoped_release unlocked;
        made.emplace(work());
    }
    MadeSketches sketches = take(std::move(*made));
    nb::list list;
    for (std::size_t at = 0; at < sketches.size(); ++at)
        list.append(nb::cast(std::move(*sketches.at(at))));
    return Sketches(list);
}

// The sketches of a container, which may still be at work on devices. Objects of Python are made
// for those that are asked for.
class SketchList {
   public:
    // is_known: the same arrays were sketched before, in the same way.
    SketchList(std::unique_ptr<SketchMaker> maker, FieldList list, SketchSettings settings, bool is_known)
        : maker_(std::move(maker)),
          list_(std::make_unique<FieldList>(std::move(list))),
          settings_(std::move(settings)),
          is_known_(is_known) {
        names_.reserve(list_->fields().size());
        for (const TakenField& field : list_->fields())
            names_.push_back(field.name);
    }
    ~SketchList() {
        const nb::gil_scoped_release unlocked;
        maker_ = nullptr;  // what it works on stays until then
    }
    SketchList(const SketchList&) = delete;
    SketchList& operator=(const SketchList&) = delete;

    // Several threads may ask; each gets the same answer. Raises what went wrong.
    void wait() {
        if (!is_done_.load()) {
            const nb::gil_scoped_release unlocked;
            const std::lock_guard lock(mutex_);
            if (maker_ != nullptr) {
                auto made = maker_->finish(names_.size());
                if (made) {
                    made_ = std::move(made).value();
                    if (!is_known_) planned_ = maker_->planned();
                } else {
                    error_ = std::move(made).error();
                }
                maker_ = nullptr;
                is_done_.store(true);
            }
        }
        if (auto list = std::move(list_); list != nullptr && !planned_.empty()) {
            keep_sketched(std::make_shared<SketchedState>(std::move(settings_), list->take_fields(),
                                                          std::move(planned_)));
        }
        if (error_) raise(*error_);
    }
    PySketch& at(std::size_t number) {
        wait();
        if (number >= made_.size()) throw nb::index_error();
        return *made_.at(number);
    }
    [[nodiscard]] std::size_t size() const { return names_.size(); }
    [[nodiscard]] bool is_known() const { return is_known_; }
    [[nodiscard]] nb::list names() const {
        nb::list all;
        for (const nb::object& name : names_)
            all.append(name);
        return all;
    }

   private:
    std::mutex mutex_;
    std::atomic<bool> is_done_{false};
    std::unique_ptr<SketchMaker> maker_;  // null: it is done
    std::unique_ptr<FieldList> list_;     // keeps the arrays until then
    SketchSettings settings_;
    bool is_known_;
    std::vector<nb::object> names_;
    MadeSketches made_;
    std::vector<PlannedOnDevice> planned_;
    std::optional<Error> error_;
};

// Gives the fields of a container to a maker while it is walked. Of arrays that were sketched
// before, whole groups are repeated as soon as all of their fields were seen.
class SketchFeed {
   public:
    SketchFeed(SketchMaker& maker, const SketchSettings& settings) : maker_(maker), settings_(settings) {}

    // The field of the next number; all[number] is it.
    Result<> add(const std::vector<TakenField>& all) {
        const std::size_t number = count_++;
        if (number == 0) known_ = find_sketched(settings_, all[0]);
        if (known_ == nullptr) return add_one(all[number], number);
        if (!known_->is(number, all[number])) {
            TWR_CHECK(leave_known(all, number));
            return add_one(all[number], number);
        }
        if (!known_->is_planned(number)) return add_one(all[number], number);
        const auto& groups = known_->planned();
        if (groups[next_].planned.numbers.back() != number) return success();
        const PlannedOnDevice& group = groups[next_++];
        const Unlocked unlocked(maker_, group.device);
        return maker_.repeat(group);
    }
    // There are no more. True: all were known.
    Result<bool> finish(const std::vector<TakenField>& all) {
        if (known_ == nullptr) return false;
        if (known_->size() == count_) return true;
        TWR_CHECK(leave_known(all, count_));
        return false;
    }

   private:
    // While this lives, Python may go on if the maker may have to wait.
    class Unlocked {
       public:
        Unlocked(const SketchMaker& maker, int device) {
            if (maker.is_full(device)) unlocked_.emplace();
        }

       private:
        std::optional<nb::gil_scoped_release> unlocked_;
    };
    Result<> add_one(const TakenField& field, std::size_t number) {
        const CapturedField captured = captured_field(field, settings_.tolerances, nullptr);
        const Unlocked unlocked(maker_, field.device);
        return maker_.add(number, captured);
    }
    // From `end` on the arrays are others: those that wait for the rest of their groups are added.
    Result<> leave_known(const std::vector<TakenField>& all, std::size_t end) {
        const auto known = std::move(known_);
        for (; next_ < known->planned().size(); ++next_) {
            for (const std::size_t number : known->planned()[next_].planned.numbers) {
                if (number < end) TWR_CHECK(add_one(all[number], number));
            }
        }
        return success();
    }

    SketchMaker& maker_;
    const SketchSettings& settings_;
    std::shared_ptr<const SketchedState> known_;
    std::size_t count_ = 0;
    std::size_t next_ = 0;  // of the groups that are known
};

// The sketches of a container whose arrays the core can take, begun while it is walked. Null where
// Python has to look at anything, or where something is wrong with it: Python says what.
std::unique_ptr<SketchList> start_sketches(nb::handle container, const nb::object& flatten,
                                           const std::map<std::string, Tolerance>& tolerances, double atol,
                                           double rtol, unsigned residue_bits, std::uint32_t chunk_bytes,
                                           const std::string& digest, int threads) {
    SketchSettings settings{sketch_settings(atol, rtol, residue_bits, chunk_bytes, digest), tolerances};
    ArrayWalk walk(container, flatten, true);
    auto maker = std::make_unique<SketchMaker>(settings.history, threads);  // ends before the walk
    SketchFeed feed(*maker, settings);
    Result<> result = success();
    for (std::size_t at = 0; result && walk.next();) {
        if (!walk.list().rest().empty()) return nullptr;
        for (; result && at < walk.list().fields().size(); ++at)
            result = feed.add(walk.list().fields());
    }
    auto list = result ? walk.finish() : std::nullopt;
    if (!list) return nullptr;
    const Result<bool> is_known = feed.finish(list->fields());
    if (is_known) {
        const nb::gil_scoped_release unlocked;
        result = maker->start();
    }
    if (!is_known || !result) {
        maker = nullptr;                                            // before the list
        if (PyErr_Occurred() != nullptr) throw nb::python_error();  // an interrupt
        return nullptr;
    }
    return std::make_unique<SketchList>(std::move(maker), std::move(*list), std::move(settings), *is_known);
}

// Sketches in host memory, brought to a device in one block.
Result<> upload(std::span<const HostSketch* const> from, int device,
                std::span<std::optional<PySketch>* const> into) {
    std::vector<const FieldMetadata*> fields;
    std::vector<const BuiltField*> built;
    for (const HostSketch* s : from) {
        fields.push_back(&s->field());
        built.push_back(&s->built());
    }
    TWR_TRY(auto sketches, DeviceSketch::upload(fields, built, device));
    for (std::size_t i = 0; i < into.size(); ++i)
        into[i]->emplace(PySketch{std::move(sketches[i])});
    return success();
}

// Those of fields of a metadata file, as it was captured or indexed. device: kHost for host memory.
Sketches load_sketches(const PyMetadata& metadata, const std::vector<std::size_t>& fields, int device) {
    if (device != kHost) check_device(device);
    std::vector<std::optional<PySketch>> made(fields.size());
    const auto work = [&]() -> Result<> {
        std::vector<HostSketch> loaded;
        loaded.reserve(fields.size());
        for (const std::size_t f : fields) {
            if (f >= metadata.file->directory().fields.size()) {
                return Error{ErrorCode::invalid_argument, "no such field in the metadata"};
            }
            TWR_TRY(HostSketch sketch, HostSketch::load(*metadata.file, f));
            loaded.push_back(std::move(sketch));
        }
        std::vector<const HostSketch*> from;
        std::vector<std::optional<PySketch>*> into;
        for (std::size_t i = 0; i < loaded.size(); ++i) {
            if (device == kHost) made[i].emplace(PySketch{std::move(loaded[i])});
            from.push_back(&loaded[i]);
            into.push_back(&made[i]);
        }
        return device == kHost ? success() : upload(from, device, into);
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    return as_list(made);
}

// Copies of sketches on another device, or the host.
Sketches move_sketches(const std::vector<PySketch*>& sketches, int device) {
    if (device != kHost) check_device(device);
    std::vector<std::optional<PySketch>> made(sketches.size());
    const auto work = [&]() -> Result<> {
        std::vector<HostSketch> downloaded;
        downloaded.reserve(sketches.size());  // pointers to these are kept
        std::vector<const HostSketch*> from;
        std::vector<std::optional<PySketch>*> into;
        for (std::size_t i = 0; i < sketches.size(); ++i) {
            const HostSketch* host = std::get_if<HostSketch>(&sketches[i]->sketch);
            if (host == nullptr) {
                TWR_TRY(HostSketch copy, HostSketch::download(*sketches[i]->on_device()));
                host = &downloaded.emplace_back(std::move(copy));
            }
            if (device == kHost) {
                made[i].emplace(PySketch{HostSketch(*host)});
            } else {
                from.push_back(host);
                into.push_back(&made[i]);
            }
        }
        return device == kHost ? success() : upload(from, device, into);
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    return as_list(made);
}

// The root of each tree: one number for all coarse digests of a field; 0 where it has no element. A
// sketch on a device is read here, and not before.
std::vector<std::uint64_t> sketch_roots(const std::vector<PySketch*>& sketches) {
    std::vector<std::uint64_t> roots;
    roots.reserve(sketches.size());
    const auto work = [&]() -> Result<> {
        for (const PySketch* one : sketches) {
            if (one->field().settings.kind != DigestKind::linear) {
                return Error{ErrorCode::invalid_argument, "the root of a sketch is that of linear digests"};
            }
            const auto root = [](const BuiltField& built) { return built.tree.empty() ? 0 : built.tree[0]; };
            if (const HostSketch* host = std::get_if<HostSketch>(&one->sketch)) {
                roots.push_back(root(host->built()));
                continue;
            }
            BuiltField built;
            TWR_CHECK(one->on_device()->download(built));
            roots.push_back(root(built));
        }
        return success();
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    return roots;
}

// What two sketches of a field say. Widths in x, where cells have one.
struct PySketchComparison {
    SketchComparison found;
    std::uint64_t elements;
    std::uint64_t chunk_elements;
    double cell;
    double coarse_cell;
};

PySketchComparison compared(SketchComparison found, const FieldMetadata& field) {
    const CellRule& rule = field.settings.rule;
    const bool wide = rule.kind == CellKind::absolute && field.settings.kind == DigestKind::linear;
    return {std::move(found), field.scalars(), field.chunking().chunk_scalars,
            wide ? std::ldexp(1.0, rule.fine_exponent) : 0.0,
            wide ? std::ldexp(1.0, rule.coarse_exponent()) : 0.0};
}

void define_comparison_of_sketches(nb::module_& m) {
    using C = PySketchComparison;
    nb::class_<C>(m, "SketchComparison", "What two sketches of a field say.")
        .def_ro("elements", &C::elements)
        .def_prop_ro("chunks", [](const C& self) { return self.found.chunks; })
        .def_prop_ro("chunks_flagged", [](const C& self) { return self.found.flagged.size(); })
        .def_prop_ro(
            "open",
            [](const C& self) {
                return nb::bytes(self.found.open.data(), self.found.open.size() * sizeof(std::uint32_t));
            },
            "Numbers of chunks that are not proven equal, as 32-bit words of this machine.")
        .def_prop_ro(
            "decided", [](const C& self) { return self.found.decided; },
            "Whether each of them is proven different.")
        .def_prop_ro("proven_by_tree", [](const C& self) { return self.found.by_tree; })
        .def_prop_ro(
            "proven_by_cells",
            [](const C& self) { return std::vector(self.found.by_cells.begin(), self.found.by_cells.end()); })
        .def_ro("cell", &C::cell)
        .def_ro("coarse_cell", &C::coarse_cell)
        .def_ro("chunk_elements", &C::chunk_elements);
}

// Of each field a sketch of both runs, both on one device or both on the host, and its tolerance.
std::vector<PySketchComparison> compare_sketches(const std::vector<const PySketch*>& all_a,
                                                 const std::vector<const PySketch*>& all_b,
                                                 const std::vector<const Tolerance*>& tolerances,
                                                 bool nan_equal) {
    if (all_a.size() != all_b.size() || all_a.size() != tolerances.size())
        raise({ErrorCode::invalid_argument, "two sketches and a tolerance for each field"});
    std::vector<SketchComparison> found(all_a.size());
    const auto work = [&]() -> Result<> {
        // Those on devices are compared together.
        std::vector<std::size_t> numbers;
        std::vector<const DeviceSketch*> device_a;
        std::vector<const DeviceSketch*> device_b;
        std::vector<DifferenceRule> rules;
        for (std::size_t i = 0; i < all_a.size(); ++i) {
            const PySketch* const a = all_a[i];
            const PySketch* const b = all_b[i];
            const DifferenceRule rule{*tolerances[i], nan_equal};
            const auto where = [&] { return "field '" + a->field().name + "'"; };
            if (a->device() != b->device())
                return Error{ErrorCode::mismatch, "the sketches lie on different devices"}.at(where());
            if (const DeviceSketch* device = a->on_device(); device != nullptr) {
                numbers.push_back(i);
                device_a.push_back(device);
                device_b.push_back(b->on_device());
                rules.push_back(rule);
                continue;
            }
            auto one = std::get<HostSketch>(a->sketch).compare(std::get<HostSketch>(b->sketch), rule);
            if (!one) return std::move(one).error().at(where());
            found[i] = std::move(*one);
        }
        if (numbers.empty()) return success();
        TWR_TRY(std::vector<SketchComparison> on_devices, DeviceSketch::compare(device_a, device_b, rules));
        for (std::size_t k = 0; k < numbers.size(); ++k)
            found[numbers[k]] = std::move(on_devices[k]);
        return success();
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    std::vector<PySketchComparison> list;
    for (std::size_t i = 0; i < found.size(); ++i)
        list.push_back(compared(std::move(found[i]), all_a[i]->field()));
    return list;
}

}  // namespace

void twinrun::define_sketches(nb::module_& m) {
    nb::class_<PySketch>(m, "FieldSketch")
        .def_prop_ro("facts",
                     [](const PySketch& self) {
                         return PyFieldFacts{std::make_shared<const FieldMetadata>(self.field())};
                     })
        .def_prop_ro("device", &PySketch::device)
        .def_prop_ro("bytes", &PySketch::bytes);
    nb::class_<SketchList>(m, "SketchList",
                           "The sketches of a container, which may still be at work on devices.")
        .def("__len__", &SketchList::size)
        .def("__getitem__", &SketchList::at, "at"_a, nb::rv_policy::reference_internal, "Waits.")
        .def_prop_ro("names", &SketchList::names, nb::for_getter(nb::sig("def names(self, /) -> list[str]")))
        .def_prop_ro("is_known", &SketchList::is_known,
                     "Whether the same arrays were sketched before, in the same way: the work was planned.")
        .def("wait", &SketchList::wait, "Until all are made. Raises what went wrong.");
    m.def(
        "start_sketches", &start_sketches, "container"_a.none(), "flatten"_a, "tolerances"_a, "atol"_a,
        "rtol"_a, "residue_bits"_a, "chunk_bytes"_a, "digest"_a, "threads"_a = 0,
        nb::sig("def start_sketches(container: object, flatten: Callable[[str, object], dict[str, object]], "
                "tolerances: Mapping[str, Tolerance], atol: float, rtol: float, residue_bits: int, "
                "chunk_bytes: int, digest: str, threads: int = 0) -> SketchList | None"),
        "Those of a container, begun while it is walked. None where Python has to look at anything in it.");
    m.def("sketch_fields", &sketch_fields, "fields"_a, "atol"_a, "rtol"_a, "residue_bits"_a, "chunk_bytes"_a,
          "digest"_a, "threads"_a = 0, "tokens"_a = false,
          "tokens: exact digests of all types but f16, bf16 and f32 are tokens.");
    m.def("load_sketches", &load_sketches, "metadata"_a, "fields"_a, "device"_a);
    m.def("move_sketches", &move_sketches, "sketches"_a, "device"_a);
    m.def("sketch_roots", &sketch_roots, "sketches"_a,
          "The root of each sketch's tree, which is 0 where there is no element.");
    define_comparison_of_sketches(m);
    m.def("compare_sketches", &compare_sketches, nb::kw_only(), "a"_a, "b"_a, "tolerances"_a,
          "nan_equal"_a = true, "Of each field its sketch in both runs, and its tolerance.");
}
