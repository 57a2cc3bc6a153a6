// What capture costs the application and what its background reaches, beside what the machine does by itself: reading the
// arrays once, copying them, writing a file of the same size. Lines that compare are taken in turns in one run.
//
//   bench_capture [--folder FOLDER] [--bytes N] [--rounds N] [--threads N] [--setting NAME=VALUE]... [--json FILE]
//                 [--only host|devices|records|small|many]

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "capture/session.hpp"
#include "platform/team.hpp"

namespace {

namespace fs = std::filesystem;
using namespace twinrun;
using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "bench_capture: %s\n", why.c_str());
    std::exit(2);
}

template <class T>
T must(Result<T> result) {
    if (!result) fail(result.error().message);
    return std::move(result).value();
}

double seconds(const std::function<void()>& work) {
    const auto start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Arguments {
    std::string folder = fs::temp_directory_path() / "twinrun-bench-capture";
    std::uint64_t bytes = 1 << 30;
    int rounds = 7;
    int threads = 0;
    std::int64_t captures = 10'000;  // of the run over which memory is watched
    std::string json;
    std::string only;
    std::vector<std::pair<std::string, std::string>> settings;  // of all runs
};

// Memory of which every page is there.
struct Memory {
    explicit Memory(std::uint64_t size) : bytes(size) {
        void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) fail("no memory");
        ::madvise(p, bytes, MADV_HUGEPAGE);
        data = static_cast<std::byte*>(p);
        std::memset(data, 0, bytes);
    }
    ~Memory() { ::munmap(data, bytes); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    std::uint64_t bytes;
    std::byte* data;
};

void fill(float* x, std::uint64_t n) {
    std::uint64_t state = 88172645463325252ULL;
    for (std::uint64_t i = 0; i < n; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        x[i] = static_cast<float>(static_cast<double>(state >> 11) * 0x1p-53) * 4.F - 2.F;
    }
}

constexpr std::uint64_t kPart = 4 << 20;

// Parts of `bytes`, shared by the team.
void in_parts(Team& team, std::uint64_t bytes,
              const std::function<void(std::uint64_t, std::uint64_t)>& work) {
    std::atomic<std::uint64_t> next = 0;
    team.run([&](int) {
        for (std::uint64_t at = next.fetch_add(kPart); at < bytes; at = next.fetch_add(kPart))
            work(at, std::min(kPart, bytes - at));
    });
}

std::uint64_t sink = 0;

void read_once(Team& team, const Memory& memory) {
    in_parts(team, memory.bytes, [&](std::uint64_t at, std::uint64_t n) {
        const auto* x = reinterpret_cast<const std::uint64_t*>(memory.data + at);
        std::uint64_t sum[8] = {};
        for (std::uint64_t i = 0; i < n / 8; i += 8) {
            for (std::uint64_t k = 0; k < 8; ++k)
                sum[k] += x[i + k];
        }
        for (const std::uint64_t s : sum)
            __atomic_fetch_add(&sink, s, __ATOMIC_RELAXED);
    });
}

// A file of so many bytes, written one part after the other and synced.
void write_plainly(const std::string& path, const std::byte* data, std::uint64_t bytes, bool direct) {
    const int file =
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (direct ? O_DIRECT : 0), 0644);
    if (file < 0) fail(path + ": cannot be written");
    for (std::uint64_t at = 0; at < bytes; at += 2 * kPart) {
        const std::uint64_t n = std::min(2 * kPart, bytes - at);
        if (::pwrite(file, data + at, n, static_cast<off_t>(at)) != static_cast<ssize_t>(n))
            fail(path + ": a write failed");
    }
    if (::fsync(file) != 0) fail(path + ": fsync failed");
    ::close(file);
}

struct Line {
    std::string name;
    std::string ceiling;  // the line that it is measured by; empty: none
    std::uint64_t bytes;
    std::vector<double> times;
    [[nodiscard]] double median() const {
        std::vector<double> sorted = times;
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() / 2];
    }
    [[nodiscard]] double quantile(double q) const {
        std::vector<double> sorted = times;
        std::sort(sorted.begin(), sorted.end());
        return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
    }
};

class Bench {
   public:
    explicit Bench(Arguments arguments) : arguments_(std::move(arguments)) {}

    int run() {
        fs::remove_all(arguments_.folder);
        fs::create_directories(arguments_.folder);
        StreamOptions cores;
        cores.threads = arguments_.threads;
        Team team(worker_count(cores));
        std::printf("%d threads, %.2f GB in 4 arrays of f32, %d rounds; folder %s\n", team.size(),
                    static_cast<double>(arguments_.bytes) * 1e-9, arguments_.rounds,
                    arguments_.folder.c_str());
        const auto wanted = [&](const char* what) {
            return arguments_.only.empty() || arguments_.only == what;
        };
        if (wanted("host")) large(team);
        if (wanted("devices")) devices();
        if (wanted("records")) device_records();
        if (wanted("small")) small();
        if (wanted("many")) many();
        fs::remove_all(arguments_.folder);
        if (!arguments_.json.empty()) write_json();
        return 0;
    }

   private:
    std::unique_ptr<Session> open(const std::string& name, const std::map<std::string, std::string>& with) {
        SessionSettings settings;
        settings.history.tolerance.atol = 1e-5;
        settings.threads = arguments_.threads;
        for (const auto& [key, value] : with)
            must(settings.set(key, value));
        for (const auto& [key, value] : arguments_.settings)
            must(settings.set(key, value));
        return must(Session::open(posix_file_system(), comm_, (fs::path(arguments_.folder) / name).string(),
                                  std::move(settings)));
    }

    void large(Team& team) {
        const Memory memory(arguments_.bytes);
        Memory copy(arguments_.bytes);
        fill(reinterpret_cast<float*>(memory.data), memory.bytes / 4);
        std::vector<CapturedField> fields;
        for (std::uint64_t f = 0; f < 4; ++f) {
            CapturedField field;
            field.name = "x" + std::to_string(f);
            field.dtype = DType::f32;
            field.shape = {memory.bytes / 16};
            field.data = memory.data + f * (memory.bytes / 4);
            fields.push_back(field);
        }
        const std::string room = std::to_string(std::max<std::uint64_t>(arguments_.bytes * 5 / 4, 16 << 20));
        std::map<std::string, std::unique_ptr<Session>> sessions;
        for (const char* bits : {"0", "2", "4"}) {
            sessions[std::string("digests, residues of ") + bits + " bits"] =
                open(std::string("digests") + bits,
                     {{"mode", "digests"}, {"residue_bits", bits}, {"keep_steps", "2"}});
        }
        const std::string full = "full data, memory for a whole step";
        sessions[full] = open("full", {{"memory", room}});
        const std::string streamed = "full data, memory of 64 MiB: at the storage's speed";
        sessions[streamed] = open("streamed", {{"memory", "64 MiB"}});

        Line& reading = line("read the arrays once", "");
        Line& copying = line("copy them", "read the arrays once");
        Line& buffered = line("write a file and fsync, page cache", "");
        Line& direct = line("write a file and fsync, O_DIRECT", "");
        const std::string plain = (fs::path(arguments_.folder) / "plain").string();
        for (int round = -1; round < arguments_.rounds; ++round) {
            const auto add = [&](Line& to, double s) {
                if (round >= 0) to.times.push_back(s);
            };
            add(reading, seconds([&] { read_once(team, memory); }));
            add(copying, seconds([&] {
                    in_parts(team, memory.bytes, [&](std::uint64_t at, std::uint64_t n) {
                        std::memcpy(copy.data + at, memory.data + at, n);
                    });
                }));
            for (const char* bits : {"0", "2", "4"}) {
                const std::string name = std::string("digests, residues of ") + bits + " bits";
                const auto report = must(sessions[name]->capture_fields(round, fields));
                add(line(name, "read the arrays once"), report.seconds);
                for (const LostStep& lost : must(sessions[name]->wait()))
                    fail(lost.error.message);
            }
            // Storage, in turns too.
            add(buffered, seconds([&] { write_plainly(plain, memory.data, memory.bytes, false); }));
            fs::remove(plain);
            {
                const auto start = Clock::now();
                const auto report = must(sessions[full]->capture_fields(round, fields));
                must(sessions[full]->wait());
                const double all = std::chrono::duration<double>(Clock::now() - start).count();
                add(line(full, "copy them"), report.seconds);
                add(line("its flush, from the call to the commit", "write a file and fsync, page cache"),
                    all);
            }
            add(direct, seconds([&] { write_plainly(plain, memory.data, memory.bytes, true); }));
            fs::remove(plain);
            {
                const auto start = Clock::now();
                static_cast<void>(must(sessions[streamed]->capture_fields(round, fields)));
                must(sessions[streamed]->wait());
                add(line(streamed, "write a file and fsync, page cache"),
                    std::chrono::duration<double>(Clock::now() - start).count());
            }
        }
        print_lines();
    }

    // Four arrays, one behind the other.
    std::vector<CapturedField> quarters(int device, const std::byte* arrays) const {
        std::vector<CapturedField> fields;
        for (std::uint64_t f = 0; f < 4; ++f) {
            CapturedField field;
            field.name = "x" + std::to_string(f);
            field.dtype = DType::f32;
            field.shape = {arguments_.bytes / 16};
            DeviceArray array;
            array.device = device;
            array.data = arrays + f * (arguments_.bytes / 4);
            array.dtype = DType::f32;
            array.shape = field.shape;
            field.device = array;
            fields.push_back(field);
        }
        return fields;
    }

    // Steps of arrays on a device that change by 1%, in one place: all of it kept, and what is new found on the host or there.
    void device_records() {
        const auto usable = probe_devices().usable();
        if (usable.empty()) return;
        const DeviceRuntime* runtime = device_runtime();
        const int device = usable.front();
        DeviceMemory arrays(device);
        must(arrays.reserve(device, arguments_.bytes));
        std::vector<float> values(arguments_.bytes / 4);
        fill(values.data(), values.size());
        must(to_result(runtime->copy(device, arrays.data(), values.data(), arguments_.bytes, nullptr)));
        const std::vector<CapturedField> fields = quarters(device, arrays.data());
        const std::string twice = std::to_string(arguments_.bytes * 2 + (1 << 20));
        const std::string room = std::to_string(arguments_.bytes * 10 + (64 << 20));
        struct Way {
            std::string name;
            std::map<std::string, std::string> with;
            std::unique_ptr<Session> session = nullptr;
        };
        std::vector<Way> ways;
        ways.push_back({"full data", {{"memory", room}, {"device_memory", twice}, {"keep_steps", "1"}}});
        const std::map<std::string, std::string> record{
            {"record", "runs"}, {"record_compress", "none"}, {"residue_bits", "0"}, {"memory", room}};
        ways.push_back({"record, what is new found on the host", record});
        ways.push_back({"record, what is new found there", record});
        ways.back().with["device_memory"] = twice;
        int number = 0;
        for (Way& way : ways)
            way.session = open("device-record" + std::to_string(number++), way.with);
        const std::size_t first = lines_.size();
        const std::size_t part = arguments_.bytes / 100 / 4096 * 4096;
        for (int round = -2; round < arguments_.rounds; ++round) {
            const std::size_t at = static_cast<std::size_t>(round + 2) * 7919 % 99 * part;
            fill(values.data(), part / 4);
            for (std::size_t i = 0; i < part / 4; ++i)
                values[i] += static_cast<float>(round + 3);  // new
            must(to_result(runtime->copy(device, arrays.data() + at, values.data(), part, nullptr)));
            must(to_result(runtime->wait_stream(device, nullptr)));
            for (Way& way : ways) {
                const auto start = Clock::now();
                const auto report = must(way.session->capture_fields(round + 2, fields));
                for (const LostStep& lost : must(way.session->wait()))
                    fail(lost.error.message);
                const double all = std::chrono::duration<double>(Clock::now() - start).count();
                if (round < 0) continue;
                line("on a device, 1% new: " + way.name + ": the call", "").times.push_back(report.seconds);
                line("on a device, 1% new: " + way.name + ": until it is committed", "").times.push_back(all);
            }
        }
        print_lines(first);
    }

    // Arrays on a device, beside a step that copies them ten times there.
    void devices() {
        const auto usable = probe_devices().usable();
        if (usable.empty()) {
            std::printf("devices: %s\n", probe_devices().reason.c_str());
            return;
        }
        const DeviceRuntime* runtime = device_runtime();
        const int device = usable.front();
        DeviceMemory arrays(device);
        DeviceMemory copy(device);
        must(arrays.reserve(device, arguments_.bytes));
        must(copy.reserve(device, arguments_.bytes));
        {
            std::vector<float> values(arguments_.bytes / 4);
            fill(values.data(), values.size());
            must(to_result(runtime->copy(device, arrays.data(), values.data(), arguments_.bytes, nullptr)));
        }
        const std::vector<CapturedField> fields = quarters(device, arrays.data());
        const std::string room = std::to_string(std::max<std::uint64_t>(arguments_.bytes * 5 / 4, 16 << 20));
        const std::string twice = std::to_string(arguments_.bytes * 2 + (1 << 20));
        const std::string step = "on a device: a step, ten copies of the arrays";
        struct Way {
            std::string name;
            std::map<std::string, std::string> with;
            std::unique_ptr<Session> session = nullptr;
        };
        std::vector<Way> ways;
        ways.push_back({"on a device: digests, brought to the host at once",
                        {{"mode", "digests"}, {"memory", room}, {"keep_steps", "2"}}});
        ways.push_back(
            {"on a device: digests, resting there",
             {{"mode", "digests"}, {"memory", room}, {"device_memory", twice}, {"keep_steps", "2"}}});
        ways.push_back({"on a device: digests without residues, resting there",
                        {{"mode", "digests"},
                         {"residue_bits", "0"},
                         {"memory", room},
                         {"device_memory", twice},
                         {"keep_steps", "2"}}});
        ways.push_back(
            {"on a device: full data, brought to the host at once", {{"memory", room}, {"keep_steps", "1"}}});
        ways.push_back({"on a device: full data, resting there",
                        {{"memory", room}, {"device_memory", twice}, {"keep_steps", "1"}}});
        int number = 0;
        for (Way& way : ways)
            way.session = open("device" + std::to_string(number++), way.with);
        const std::size_t first = lines_.size();
        for (int round = -1; round < arguments_.rounds; ++round) {
            const double ten = seconds([&] {
                for (int i = 0; i < 10; ++i)
                    must(to_result(
                        runtime->copy(device, copy.data(), arrays.data(), arguments_.bytes, nullptr)));
                must(to_result(runtime->wait_stream(device, nullptr)));
            });
            if (round >= 0) line(step, "").times.push_back(ten);
            for (Way& way : ways) {
                const auto report = must(way.session->capture_fields(round, fields));
                if (round >= 0) line(way.name, step).times.push_back(report.seconds);
                for (const LostStep& lost : must(way.session->wait()))
                    fail(lost.error.message);
            }
        }
        print_lines(first);
    }

    // 1000 captures of 100 small arrays.
    void small() {
        std::vector<std::vector<double>> arrays(100, std::vector<double>(128));
        for (const char* mode : {"full", "digests"}) {
            auto run = open(std::string("small-") + mode, {{"mode", mode}});
            for (std::size_t i = 0; i < arrays.size(); ++i) {
                CapturedField field;
                field.name = "array" + std::to_string(i);
                field.dtype = DType::f64;
                field.shape = {arrays[i].size()};
                field.data = arrays[i].data();
                must(run->protect(field));
            }
            Line calls{std::string("captures of 100 arrays of 1 KiB, ") + mode, "", 100 << 10, {}};
            const double all = seconds([&] {
                for (std::int64_t step = 0; step < arguments_.captures / 10; ++step) {
                    for (auto& array : arrays)
                        array[0] = static_cast<double>(step);
                    calls.times.push_back(must(run->capture(step)).seconds);
                }
                must(run->wait());
            });
            std::printf(
                "%-60s  call: median %.1f us, 90%% %.1f us, 99%% %.1f us, longest %.1f us; committed %.0f "
                "steps/s\n",
                calls.name.c_str(), calls.median() * 1e6, calls.quantile(0.9) * 1e6,
                calls.quantile(0.99) * 1e6, calls.quantile(1) * 1e6,
                static_cast<double>(arguments_.captures) / 10 / all);
            lines_.push_back(std::move(calls));
        }
    }

    // Memory over 10,000 captures.
    void many() {
        std::vector<double> array(64 << 10);
        auto run = open("many", {{"memory", "64 MiB"}, {"keep_steps", "3"}});
        CapturedField field;
        field.name = "x";
        field.dtype = DType::f64;
        field.shape = {array.size()};
        field.data = array.data();
        must(run->protect(field));
        const auto resident = [] {
            std::ifstream file("/proc/self/statm");
            long pages = 0;
            file >> pages >> pages;
            return static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE));
        };
        const double before = resident();
        double early = 0;
        double most = 0;
        const double all = seconds([&] {
            for (std::int64_t step = 0; step < arguments_.captures; ++step) {
                array[static_cast<std::size_t>(step) % array.size()] = static_cast<double>(step);
                static_cast<void>(must(run->capture(step)));
                if (step % 10 == 9) {
                    most = std::max(most, resident() - before);
                    if (step < 1000) early = most;
                }
            }
            must(run->wait());
        });
        std::printf(
            "%lld captures of 512 KiB, memory = 64 MiB, keep_steps = 3: resident memory grew by at most %.1f "
            "MiB (%.1f in the "
            "first 1000), staging %.1f MiB; %.0f steps/s\n",
            static_cast<long long>(arguments_.captures), most / 0x1p20, early / 0x1p20,
            static_cast<double>(run->facts().most_staged_bytes) / 0x1p20,
            static_cast<double>(arguments_.captures) / all);
    }

    Line& line(const std::string& name, const std::string& ceiling) {
        for (Line& l : lines_) {
            if (l.name == name) return l;
        }
        lines_.push_back({name, ceiling, arguments_.bytes, {}});
        return lines_.back();
    }
    void print_lines(std::size_t first = 0) {
        std::printf("%-60s %9s %9s %9s  %s\n", "", "ms", "GB/s", "spread", "time, of its ceiling's");
        for (std::size_t i = first; i < lines_.size(); ++i) {
            const Line& l = lines_[i];
            const double m = l.median();
            std::printf("%-60s %9.1f %9.2f %8.0f%%", l.name.c_str(), m * 1e3,
                        static_cast<double>(l.bytes) / m * 1e-9,
                        (l.quantile(0.75) - l.quantile(0.25)) / m * 100);
            if (!l.ceiling.empty())
                std::printf("  %.2f x '%s'", m / line(l.ceiling, "").median(), l.ceiling.c_str());
            std::printf("\n");
        }
    }
    void write_json() {
        std::ofstream file(arguments_.json);
        file << "[";
        const char* comma = "";
        for (const Line& l : lines_) {
            file << comma << "\n  {\"name\": \"" << l.name << "\", \"ceiling\": \"" << l.ceiling
                 << "\", \"bytes\": " << l.bytes << ", \"median\": " << l.median()
                 << ", \"q25\": " << l.quantile(0.25) << ", \"q75\": " << l.quantile(0.75) << "}";
            comma = ",";
        }
        file << "\n]\n";
    }

    Arguments arguments_;
    SelfComm comm_;
    std::deque<Line> lines_;
};

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments;
    // As a test: everything runs, on sizes of which nobody should read the times.
    if (std::getenv("BENCHMARK_SMOKE") != nullptr) {
        arguments.bytes = 8 << 20;
        arguments.rounds = 1;
        arguments.captures = 20;
        arguments.folder += "-smoke-" + std::to_string(::getpid());
        return Bench(arguments).run();
    }
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        if (i + 1 >= argc) fail(option + " needs a value");
        const std::string value = argv[++i];
        if (option == "--only") {
            arguments.only = value;
        } else if (option == "--folder") {
            arguments.folder = value;
        } else if (option == "--bytes") {
            arguments.bytes = std::strtoull(value.c_str(), nullptr, 10) / 4096 * 4096;
        } else if (option == "--rounds") {
            arguments.rounds = std::atoi(value.c_str());
        } else if (option == "--threads") {
            arguments.threads = std::atoi(value.c_str());
        } else if (option == "--setting") {
            const std::size_t equals = std::min(value.find('='), value.size() - 1);
            arguments.settings.emplace_back(value.substr(0, equals), value.substr(equals + 1));
        } else if (option == "--json") {
            arguments.json = value;
        } else {
            fail("unknown option " + option);
        }
    }
    if (arguments.bytes < (1 << 20) || arguments.rounds < 1)
        fail("--bytes from 1 MiB on, --rounds from 1 on");
    return Bench(arguments).run();
}
