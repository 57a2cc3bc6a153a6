#include "comparison/document.hpp"

#include <charconv>
#include <cmath>
#include <set>
#include <span>
#include <string_view>

#include "base/utf8.hpp"
#include "difference/difference.hpp"

namespace twinrun {

namespace {

// Writes one JSON value after another.
class Writer {
   public:
    void null() { text_ += "null"; }
    void value(bool truth) { text_ += truth ? "true" : "false"; }
    void value(std::uint64_t number) { text_ += std::to_string(number); }
    void value(std::int64_t number) { text_ += std::to_string(number); }
    void value(std::uint32_t number) { text_ += std::to_string(number); }
    void value(double number) {
        if (std::isnan(number)) return value(std::string_view("nan"));
        if (std::isinf(number)) return value(std::string_view(number > 0 ? "inf" : "-inf"));
        // A number as JSON, independent of the application's locale. A float keeps its point, so
        // that readers keep its type.
        char digits[40];
        const std::string_view shown(
            digits,
            static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, number).ptr - digits));
        text_ += shown;
        if (shown.find_first_of(".e") == std::string_view::npos) text_ += ".0";
    }
    void value(std::string_view text) {
        constexpr const char* kDigits = "0123456789abcdef";
        const std::string shown = is_utf8(text) ? std::string() : readable(text);
        text_ += '"';
        for (const char c : shown.empty() ? text : std::string_view(shown)) {
            const auto byte = static_cast<unsigned char>(c);
            if (c == '"' || c == '\\') {
                text_ += {'\\', c};
            } else if (byte < 0x20) {
                text_ += {'\\', 'u', '0', '0', kDigits[byte >> 4], kDigits[byte & 15]};
            } else {
                text_ += c;
            }
        }
        text_ += '"';
    }
    void value(const char* text) { value(std::string_view(text)); }
    void value(const std::string& text) { value(std::string_view(text)); }
    template <class T>
    void value(const std::optional<T>& maybe) {
        if (maybe) {
            value(*maybe);
        } else {
            null();
        }
    }
    void value(const ElementValue& element) {
        if (is_floating(element.scalar)) {
            value(element.real);
        } else if (element.scalar == DType::u64) {
            value(element.unsigned_integer);
        } else {
            value(element.integer);
        }
    }
    template <class T>
    void list(const T& values) {
        text_ += '[';
        bool first = true;
        for (const auto& one : values) {
            if (!first) text_ += ", ";
            first = false;
            value(one);
        }
        text_ += ']';
    }
    void begin(char bracket) {
        text_ += bracket;
        first_ = true;
    }
    void end(char bracket) {
        text_ += bracket;
        first_ = false;
    }
    // Before a member of an object.
    void key(const char* name) {
        next();
        value(name);
        text_ += ": ";
    }
    // Before an entry of a list, or a member.
    void next() {
        if (!first_) text_ += ", ";
        first_ = false;
    }
    template <class T>
    void member(const char* name, const T& one) {
        key(name);
        value(one);
    }
    template <class T>
    void list_member(const char* name, const T& values) {
        key(name);
        list(values);
    }
    void null_member(const char* name) {
        key(name);
        null();
    }
    // NaN: it is not known.
    void known_member(const char* name, double one) {
        if (std::isnan(one)) {
            null_member(name);
        } else {
            member(name, one);
        }
    }
    void index_member(const char* name, bool there, const std::vector<std::uint64_t>& index) {
        if (there) {
            list_member(name, index);
        } else {
            null_member(name);
        }
    }
    void histogram(const char* name, const std::vector<std::uint64_t>& counts) {
        if (counts.empty()) {
            list_member(name, Histogram{});
        } else {
            list_member(name, counts);
        }
    }
    // Separators of keys and fields, for people.
    void line(const char* indent) { text_ += indent; }
    std::string take() { return std::move(text_); }

   private:
    std::string text_;
    bool first_ = true;
};

void write_stage(Writer& out, const char* name, const StageFacts& stage, bool with_ran) {
    out.key(name);
    out.begin('{');
    if (with_ran) out.member("ran", stage.ran);
    out.member("chunks_in", stage.chunks_in);
    out.member("chunks_out", stage.chunks_out);
    out.member("bytes_read", stage.bytes_read);
    out.member("seconds", stage.seconds);
    out.end('}');
}

void write_difference(Writer& out, const FieldFacts& field) {
    if (field.first_whole_diff) {
        out.value(*field.first_whole_diff);
    } else {
        out.value(field.first_abs_diff);
    }
}

void write_first_chunk(Writer& out, const FieldFacts& f) {
    out.key("first_chunk");
    if (f.different_is_exact) {
        out.null();
        return;
    }
    out.begin('[');
    for (const auto* index : {&f.chunk_begin, &f.chunk_end}) {
        out.next();
        out.list(*index);
    }
    out.end(']');
}

void write_field(Writer& out, const FieldFacts& f) {
    const bool differs = f.first_a.has_value();
    out.begin('{');
    out.member("step", f.step);
    out.member("rank", f.rank);
    out.member("field", f.name);
    out.member("dtype", dtype_name(f.dtype));
    out.list_member("shape", f.shape);
    out.member("atol", f.decision.tolerance.atol);
    out.member("rtol", f.decision.tolerance.rtol);
    out.member("elements", f.elements);
    out.member("bytes", f.bytes);
    out.member("different", f.different);
    out.member("infinite", f.infinite);
    out.index_member("first_index", differs, f.first_index);
    out.member("first_a", f.first_a);
    out.member("first_b", f.first_b);
    out.key("first_abs_diff");
    write_difference(out, f);
    out.member("max_abs_diff", f.max_abs_diff);
    out.member("max_abs_diff_is_bound", f.max_abs_diff_is_bound);
    out.member("max_abs_diff_at_least", f.max_abs_diff_at_least);
    out.index_member("max_abs_index", f.max_abs_a.has_value(), f.max_abs_index);
    out.member("max_abs_a", f.max_abs_a);
    out.member("max_abs_b", f.max_abs_b);
    out.known_member("max_rel_diff", f.max_rel_diff);
    out.index_member("max_rel_index", f.has_max_rel_index, f.max_rel_index);
    out.known_member("rms_diff", f.rms_diff);
    out.member("rms_diff_all", f.rms_diff_all);
    out.member("rms_diff_all_is_bound", f.rms_diff_all_is_bound);
    out.histogram("histogram", f.histogram);
    out.histogram("histogram_different", f.histogram_different);
    out.member("elements_read", f.elements_read);
    out.member("proven_by_tree", f.proven_by_tree);
    out.list_member("proven_by_cells", f.proven_by_cells);
    out.member("cell", f.cell);
    out.member("coarse_cell", f.coarse_cell);
    out.member("chunks", f.chunks);
    out.key("stages");
    out.begin('{');
    write_stage(out, "tree", f.tree, true);
    write_stage(out, "sketch", f.sketch, true);
    write_stage(out, "elements", f.element_stage, true);
    out.end('}');
    out.member("method", method_name(f.method));
    out.member("reason", f.reason);
    out.member("io", f.io);
    out.member("seconds", f.seconds);
    out.list_member("warnings", f.warnings);
    out.member("device", f.device);
    out.member("device_reason", f.device_reason);
    out.member("device_seconds", f.device_seconds);
    out.member("ulps", f.decision.ulps);
    out.list_member("period", std::vector<double>{});
    for (const char* name : {"key", "first_id", "max_abs_id", "particles", "ranks"})
        out.null_member(name);
    out.member("kind", f.kind);
    out.null_member("types");
    out.member("different_is_exact", f.different_is_exact);
    write_first_chunk(out, f);
    out.member("verdict", f.same() ? "same" : "different");
    out.end('}');
}

void write_first(Writer& out, const RunsResult& result) {
    out.key("first_divergence");
    if (!result.first) {
        out.null();
        return;
    }
    const FieldFacts& f = result.fields[*result.first];
    out.begin('{');
    out.member("step", f.step);
    out.member("rank", f.rank);
    out.member("field", f.name);
    out.index_member("index", f.first_a.has_value(), f.first_index);
    out.member("a", f.first_a);
    out.member("b", f.first_b);
    out.key("abs_diff");
    write_difference(out, f);
    if (!f.different_is_exact) write_first_chunk(out, f);
    out.end('}');
}

void add(StageFacts& sum, const StageFacts& stage) {
    sum.chunks_in += stage.chunks_in;
    sum.chunks_out += stage.chunks_out;
    sum.bytes_read += stage.bytes_read;
    sum.seconds += stage.seconds;
}

void write_sums(Writer& out, const RunsResult& result) {
    StageFacts tree;
    StageFacts sketch;
    StageFacts elements;
    for (const FieldFacts& f : result.fields) {
        add(tree, f.tree);
        add(sketch, f.sketch);
        add(elements, f.element_stage);
    }
    out.key("stages");
    out.begin('{');
    write_stage(out, "tree", tree, false);
    write_stage(out, "sketch", sketch, false);
    write_stage(out, "elements", elements, false);
    out.end('}');
}

}  // namespace

std::string document(const RunsResult& result, const std::string& version) {
    std::set<std::string_view> devices;
    double device_seconds = 0;
    for (const FieldFacts& f : result.fields) {
        devices.insert(f.device);
        device_seconds += f.device_seconds;
    }
    std::string device;
    for (const std::string_view name : devices)
        device += (device.empty() ? "" : ", ") + std::string(name);

    Writer out;
    out.begin('{');
    out.line("\n ");
    out.member("twinrun", version);
    out.member("verdict", verdict_name(result.verdict));
    out.member("a", result.a);
    out.member("b", result.b);
    out.member("different", result.different);
    write_first(out, result);
    out.key("fields");
    out.begin('[');
    for (const FieldFacts& f : result.fields) {
        out.next();
        out.line("\n  ");
        write_field(out, f);
    }
    out.end(']');
    out.list_member("attributes", std::vector<std::uint64_t>{});
    out.member("attributes_compared", std::uint64_t{0});
    out.list_member("histogram_edges", histogram_tables().edges);
    write_sums(out, result);
    out.member("bytes_compared", result.bytes_compared);
    out.member("bytes_read", result.bytes_read);
    out.member("seconds", result.seconds);
    out.member("device", device);
    out.member("device_seconds", device_seconds);
    out.member("not_compared", std::uint64_t{0});
    out.list_member("notes", result.notes);
    out.list_member("problems", result.problems);
    out.member("error", result.problems.empty() ? std::optional<std::string>() : result.problems.front());
    out.line("\n");
    out.end('}');
    return out.take();
}

}  // namespace twinrun
