#include "history/provenance.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checksum.hpp"
#include "base/utf8.hpp"
#include "history/journal_line.hpp"
#include "history/secrets.hpp"
#include "history/variables.hpp"
#include "platform/elf_objects.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

extern "C" char** environ;  // NOLINT(readability-redundant-declaration): not every libc declares it

namespace twinrun {

namespace {

using Facts = std::map<std::string, std::string>;
namespace fs = std::filesystem;

constexpr std::size_t kLongestValue = 16 << 10;  // bytes; a long LD_LIBRARY_PATH has 10 KB
// of what is read for a value: a secret that was cut is not recognised
constexpr std::size_t kMostOfValue = 2 * kLongestValue;
// of all names and values, because they become a line of the journal
constexpr std::size_t kMostBytes = 256 << 10;
// kMostBytes, if every byte becomes an escape of six characters
constexpr std::size_t kLargestJson = 2 << 20;

// ---- text ----

// Valid UTF-8 of at most kLongestValue bytes.
std::string clean(std::string_view text) {
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (std::all_of(text.begin(), text.end(), is_ascii)) return std::string(text.substr(0, kLongestValue));
    std::string out;
    while (!text.empty()) {
        const std::size_t length = character_bytes(text);
        if (out.size() + std::max<std::size_t>(length, 1) > kLongestValue) break;
        out += length == 0 ? "?" : std::string(text.substr(0, length));
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return out;
}

// The first bytes of a small file, or of one in /proc or /sys; nullopt: it cannot be read.
std::optional<std::string> read_text(const std::string& path, std::size_t most = 4096) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return std::nullopt;
    std::string text(most, '\0');
    std::size_t have = 0;
    while (have < most) {
        const ssize_t got = read(descriptor, text.data() + have, most - have);
        if (got <= 0) break;
        have += static_cast<std::size_t>(got);
    }
    close(descriptor);
    text.resize(have);
    return text;
}

std::string trimmed(std::string_view text) {
    constexpr std::string_view kBlank = " \t\r\n\"\0";
    const std::size_t first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos) return {};
    return std::string(text.substr(first, text.find_last_not_of(kBlank) - first + 1));
}

// The value of the line "key<separator>value".
std::string line_value(std::string_view text, std::string_view key, char separator) {
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        const std::size_t at = line.find(separator);
        if (at != std::string_view::npos && trimmed(line.substr(0, at)) == key) {
            return trimmed(line.substr(at + 1));
        }
    }
    return {};
}

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

// ---- groups of facts ----

// The program's arguments, quoted as for a shell, without secrets.
std::string arguments() {
    const std::string raw = read_text("/proc/self/cmdline", kMostOfValue).value_or("");
    std::vector<std::string> words;
    for (std::size_t at = 0; at < raw.size(); at += words.back().size() + 1)
        words.emplace_back(raw.c_str() + at);
    return quoted_line(without_secrets(std::move(words)));
}

// A fact without secrets. Histories of earlier versions may have some.
std::string public_fact(std::string_view group, std::string_view name, std::string_view value) {
    value = value.substr(0, kMostOfValue);
    if (group == "environment") {  // with its name, which may be that of a secret
        const std::string before = std::string(name) + '=';
        const std::string shown = without_secrets(before + std::string(value));
        return shown.starts_with(before) ? shown.substr(before.size()) : "...";
    }
    if (group != "program" || name != "arguments") return without_secrets(value);
    const std::vector<std::string> words = words_of_line(value);
    const std::vector<std::string> shown = without_secrets(words);
    return shown == words ? std::string(value) : quoted_line(shown);
}

// Identifies a program that has no build-id. Of a large file only both ends are read: a change of
// code moves what lies at the end.
std::string file_identity(const std::string& path) {
    constexpr std::uint64_t kEnd = 4 << 20;  // bytes; both ends take 2 ms at 4 GB/s
    struct stat info {};
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return {};
    const bool known = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
    const std::uint64_t size = known ? static_cast<std::uint64_t>(info.st_size) : 0;
    StreamingChecksum sum;
    std::vector<std::byte> buffer(1 << 20);
    const auto digest = [&](std::uint64_t from, std::uint64_t to) {
        while (from < to) {
            const ssize_t got =
                pread(descriptor, buffer.data(), std::min<std::uint64_t>(buffer.size(), to - from),
                      static_cast<off_t>(from));
            if (got <= 0) return false;
            sum.update({buffer.data(), static_cast<std::size_t>(got)});
            from += static_cast<std::uint64_t>(got);
        }
        return true;
    };
    const std::uint64_t first = std::min(size, kEnd);
    const bool complete = known && digest(0, first) && digest(std::max(first, size - first), size);
    close(descriptor);
    if (!complete) return {};
    return "xxh3 " + hex_of(sum.value()) + ", " + std::to_string(size) + " bytes";
}

Facts program_facts(const std::vector<LoadedObject>& objects) {
    Facts facts;
    facts["arguments"] = arguments();
    std::error_code failed;
    facts["working_directory"] = fs::current_path(failed).string();
    if (objects.empty()) return facts;
    const LoadedObject& program = objects.front();
    facts["path"] = program.path;
    facts["build"] = program.build_id.empty() ? file_identity("/proc/self/exe") : program.build_id;
    return facts;
}

Facts compiler_facts() {
    Facts facts;
#if defined(__clang__)
    facts["twinrun"] = "Clang " __clang_version__;
#else
    facts["twinrun"] = "GCC " __VERSION__;
#endif
    facts["twinrun_version"] = TWINRUN_VERSION;
    const ElfProducers made = elf_producers("/proc/self/exe");
    facts["program"] = made.compilers;
    facts["program_switches"] = made.switches;
    return facts;
}

Facts host_facts() {
    Facts facts;
    utsname name{};
    if (uname(&name) == 0) {
        facts["name"] = name.nodename;
        facts["kernel"] = std::string(name.sysname) + " " + name.release;
        facts["architecture"] = name.machine;
    }
    std::optional<std::string> release = read_text("/etc/os-release");
    if (!release) release = read_text("/usr/lib/os-release");
    if (release) facts["distribution"] = line_value(*release, "PRETTY_NAME", '=');
    return facts;
}

std::string cores_available() {
    // The set must have room for all cores that the kernel supports.
    for (int most = 1024; most <= 1 << 20; most *= 4) {
        cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(most));
        if (set == nullptr) return {};
        const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(most));
        const bool known = sched_getaffinity(0, bytes, set) == 0;
        const int count = known ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (known) return std::to_string(count);
    }
    return {};
}

Facts cpu_facts() {
    Facts facts;
    facts["cores_available"] = cores_available();
    facts["microcode"] = trimmed(read_text("/sys/devices/system/cpu/cpu0/microcode/version").value_or(""));
#if defined(__x86_64__)
    // Not from /proc/cpuinfo: on machines with many cores some kernels take long, because they wait
    // for each core.
    std::array<unsigned, 12> words{};
    bool known = true;
    for (unsigned leaf = 0; leaf < 3; ++leaf) {
        unsigned* w = words.data() + 4 * std::size_t{leaf};
        known = __get_cpuid(0x80000002U + leaf, w, w + 1, w + 2, w + 3) != 0 && known;
    }
    if (known) {
        const auto text = std::bit_cast<std::array<char, sizeof words>>(words);
        facts["model"] = trimmed({text.data(), ::strnlen(text.data(), text.size())});
    }
    std::string features;
    auto has = [&](const char* name, bool present) {
        if (present) features += (features.empty() ? "" : " ") + std::string(name);
    };
    // The features by which math libraries choose their kernels. The builtin also checks that the
    // system saves the registers.
    __builtin_cpu_init();
    has("sse4.2", __builtin_cpu_supports("sse4.2") != 0);
    has("avx", __builtin_cpu_supports("avx") != 0);
    has("avx2", __builtin_cpu_supports("avx2") != 0);
    has("fma", __builtin_cpu_supports("fma") != 0);
    has("avx512f", __builtin_cpu_supports("avx512f") != 0);
    has("avx512dq", __builtin_cpu_supports("avx512dq") != 0);
    has("avx512bw", __builtin_cpu_supports("avx512bw") != 0);
    has("avx512vl", __builtin_cpu_supports("avx512vl") != 0);
    has("avx512vnni", __builtin_cpu_supports("avx512vnni") != 0);
    facts["features"] = features;
#elif defined(__aarch64__)
    const std::string text = read_text("/proc/cpuinfo").value_or("");
    const std::string midr =
        trimmed(read_text("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1").value_or(""));
    const std::string model = line_value(text, "model name", ':');
    facts["model"] = model.empty() ? midr : model;
    facts["features"] = "hwcap " + hex_of(getauxval(AT_HWCAP)) + " " + hex_of(getauxval(AT_HWCAP2));
#endif
    return facts;
}

// Facts that the driver publishes in /proc: no device is opened, and no context is made.
Facts gpu_facts() {
    Facts facts;
    const std::optional<std::string> version = read_text("/proc/driver/nvidia/version");
    if (!version) return facts;
    facts["driver"] = trimmed(version->substr(0, version->find('\n')));
    std::map<std::string, int> models;
    std::error_code failed;
    for (fs::directory_iterator at("/proc/driver/nvidia/gpus", failed), end; !failed && at != end;
         at.increment(failed)) {
        const std::string model =
            line_value(read_text((at->path() / "information").string()).value_or(""), "Model", ':');
        if (!model.empty()) ++models[model];
    }
    std::string all;
    for (const auto& [model, count] : models) {
        all += (all.empty() ? "" : ", ") + (count > 1 ? std::to_string(count) + " x " : "") + model;
    }
    facts["devices"] = all;
    return facts;
}

// Libraries whose version can change a result. Each entry matches its name, and names that continue
// with one of the characters ".-_0123456789".
constexpr std::array kLibraries{
    "libc",
    "libm",
    "libstdc++",
    "libgfortran",
    "libgomp",
    "libiomp5",
    "libomp",
    "libtbb",
    "libmpi",
    "libmpich",
    "libucp",
    "libfabric",
    "libpsm",
    "libnccl",
    "libopenblas",
    "libopenblasp",
    "libscipy_openblas",
    "libblas",
    "libcblas",
    "liblapack",
    "liblapacke",
    "libblis",
    "libflame",
    "libmkl",
    "libarmpl",
    "libscalapack",
    "libsvml",
    "libimf",
    "libdnnl",
    "libfftw",
    "libcuda",
    "libcudart",
    "libcublas",
    "libcublasLt",
    "libcudnn",
    "libcufft",
    "libcusolver",
    "libcusparse",
    "libcurand",
    "libamdhip64",
    "librocblas",
    "libhdf",
    "libnetcdf",
    "libadios",
    "libtorch",
    "libc10",
    "libpetsc",
    "libsundials",
    "libkokkoscore",
    "liblammps",
    "libgromacs",
    "libtwinrun",
};

std::string_view library_name(std::string_view file) {
    for (const std::string_view name : kLibraries) {
        if (begins(file, name) &&
            (file.size() == name.size() ||
             std::string_view(".-_0123456789").find(file[name.size()]) != std::string_view::npos)) {
            return file.substr(0, std::min(file.find(".so"), file.find('-')));
        }
    }
    return {};
}

Facts library_facts(const std::vector<LoadedObject>& objects) {
    Facts facts;
    for (const LoadedObject& object : objects) {
        const std::string file = fs::path(object.path).filename().string();
        const std::string_view name = library_name(file);
        if (name.empty()) continue;
        std::string& value = facts[std::string(name)];  // two libraries of one name are both listed
        value += (value.empty() ? "" : "; ") + object.path +
                 (object.build_id.empty() ? "" : ", build " + object.build_id);
    }
    return facts;
}

// The numbers of threads that libraries use, whatever the environment says. Asks only libraries
// that are loaded and have chosen the number when they were loaded: the question must not start
// threads.
Facts thread_facts(const std::vector<LoadedObject>& objects) {
    struct Question {
        const char* library;
        const char* function;
        const char* fact;
    };
    constexpr std::array kQuestions{
        Question{"libgomp", "omp_get_max_threads", "openmp"},
        Question{"libopenblas", "openblas_get_num_threads", "openblas"},
        Question{"libscipy_openblas64", "scipy_openblas_get_num_threads64_", "openblas"},
        Question{"libscipy_openblas", "scipy_openblas_get_num_threads", "openblas"},
    };
    Facts facts;
    for (const LoadedObject& object : objects) {
        const std::string file = fs::path(object.path).filename().string();
        for (const Question& question : kQuestions) {
            if (!begins(file, question.library)) continue;
            void* handle = dlopen(object.path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
            if (handle == nullptr) continue;
            if (void* symbol = dlsym(handle, question.function)) {
                facts[question.fact] = std::to_string(reinterpret_cast<int (*)()>(symbol)());
            }
            dlclose(handle);
        }
    }
    return facts;
}

Facts environment_facts() {
    Facts facts;
    for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
        const std::string_view entry = *at;
        const std::size_t equals = entry.find('=');
        if (equals == std::string_view::npos || equals == 0) continue;
        const std::string_view name = entry.substr(0, equals);
        if (!keeps_variable(name)) continue;
        // A variable with an empty value is stored too: it may act differently from one that is not
        // set.
        facts[std::string(name)] = entry.substr(equals + 1);
    }
    return facts;
}

// The floating-point environment of the calling thread.
Facts floating_point_facts() {
    Facts facts;
    const auto on = [](bool is) { return is ? "on" : "off"; };
#if defined(__x86_64__)
    const unsigned control = _mm_getcsr();
    constexpr std::array kRounding{"to nearest", "downward", "upward", "toward zero"};
    facts["rounding"] = kRounding[(control >> 13) & 3U];
    facts["flush_to_zero"] = on((control & 0x8000U) != 0);
    facts["denormals_are_zero"] = on((control & 0x0040U) != 0);
    std::uint16_t x87 = 0;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    constexpr std::array kPrecision{"single", "reserved", "double", "extended"};
    facts["x87_precision"] = kPrecision[(x87 >> 8U) & 3U];
#elif defined(__aarch64__)
    unsigned long long control = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    constexpr std::array kRounding{"to nearest", "upward", "downward", "toward zero"};
    facts["rounding"] = kRounding[(control >> 22) & 3U];
    facts["flush_to_zero"] = on((control & (1ULL << 24)) != 0);
    facts["flush_to_zero_f16"] = on((control & (1ULL << 19)) != 0);
#else
    (void)on;
    facts["rounding"] = std::fegetround() == FE_TONEAREST ? "to nearest" : "other";
#endif
    return facts;
}

Facts time_facts() {
    Facts facts;
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    std::array<char, 32> text{};
    if (gmtime_r(&now, &utc) != nullptr &&
        std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc) > 0) {
        facts["start"] = text.data();
    }
    return facts;
}

// Adds a group of facts. A group that cannot be read (no memory, a file system that fails) is left
// out, and the others stay.
template <class F>
void add(Provenance& provenance, const char* group, F&& learn) {
    try {
        const bool environment = std::string_view(group) == "environment";
        Facts facts;
        for (const auto& [name, value] : learn()) {
            if (!value.empty() || environment) facts[clean(name)] = clean(public_fact(group, name, value));
        }
        if (!facts.empty()) provenance.groups[group] = std::move(facts);
    } catch (const std::exception&) {
        return;
    }
}

}  // namespace

Provenance collect_provenance() {
    Provenance p;
    std::vector<LoadedObject> objects;
    try {
        objects = loaded_objects();
    } catch (const std::exception&) {
        objects.clear();
    }
    add(p, "program", [&] { return program_facts(objects); });
    add(p, "compiler", compiler_facts);
    add(p, "host", host_facts);
    add(p, "cpu", cpu_facts);
    add(p, "gpu", gpu_facts);
    add(p, "libraries", [&] { return library_facts(objects); });
    add(p, "threads", [&] { return thread_facts(objects); });
    add(p, "environment", environment_facts);
    add(p, "floating_point", floating_point_facts);
    add(p, "time", time_facts);
    return p;
}

std::string provenance_to_json(const Provenance& provenance) {
    Json all = Json::object();
    std::size_t bytes = 0;
    for (const auto& [group, facts] : provenance.groups) {
        Json members = Json::object();
        for (const auto& [name, value] : facts) {
            std::string key = clean(name);
            std::string text = clean(public_fact(group, name, value));
            bytes += key.size() + text.size() + 16;  // 16: punctuation
            if (bytes > kMostBytes) break;
            members[std::move(key)] = std::move(text);
        }
        std::string key = clean(group);
        bytes += key.size() + 16;
        if (bytes > kMostBytes) break;
        all[std::move(key)] = std::move(members);
    }
    return all.dump();
}

Result<Provenance> provenance_of(const Json& all) {
    const auto damaged = [] {
        return Error{
            ErrorCode::damaged,
            "provenance: not an object of objects of strings; the history was changed by another program"};
    };
    if (!all.is_object()) return damaged();
    Provenance p;
    std::size_t bytes = 0;
    for (const auto& [group, facts] : all.items()) {
        if (!facts.is_object()) return damaged();
        bytes += group.size();
        Facts& members = p.groups[group];
        for (const auto& [name, value] : facts.items()) {
            if (!value.is_string()) return damaged();
            const auto& text = value.get_ref<const std::string&>();
            bytes += name.size() + text.size();
            if (bytes > kLargestJson) return damaged();
            members[name] = text;
        }
    }
    return p;
}

Result<Provenance> provenance_from_json(const std::string& json) {
    try {
        // What is too long, or no JSON, is no object either.
        return provenance_of(json.size() > kLargestJson ? Json() : Json::parse(json, nullptr, false));
    } catch (const std::exception&) {
        return provenance_of(Json());
    }
}

}  // namespace twinrun
