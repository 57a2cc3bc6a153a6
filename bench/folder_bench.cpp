// What a folder takes: from one thread, from as many threads as there are cores (a file each, or parts of one file), and
// from captures with data, up to the commit. All lines in turns; medians, by wall and by the processor's time.
//
//   bench_folder [--folder FOLDER] [--bytes N] [--rounds N] [--threads N] [--setting NAME=VALUE]... [--json FILE] [--only WORD]

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "capture/session.hpp"
#include "platform/team.hpp"

namespace {

namespace fs = std::filesystem;
using namespace twinrun;

constexpr std::uint64_t kBlock = 4 << 20;

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "bench_folder: %s\n", why.c_str());
    std::exit(2);
}

template <class T>
T must(Result<T> result) {
    if (!result) fail(result.error().message);
    return std::move(result).value();
}

struct Arguments {
    std::string folder = fs::temp_directory_path() / "twinrun-bench-folder";
    std::uint64_t bytes = 512 << 20;
    int rounds = 7;
    int threads = 0;
    std::string json;
    std::string only;  // a part of a line's name; the first line is always there
    std::vector<std::pair<std::string, std::string>> settings;
};

struct Clocks {
    static double wall() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    static double processor() {
        rusage used;
        ::getrusage(RUSAGE_SELF, &used);
        const auto seconds = [](const timeval& t) {
            return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
        };
        return seconds(used.ru_utime) + seconds(used.ru_stime);
    }
};

struct Line {
    std::string name;
    std::function<void(int round)> work;
    std::function<void(int round)> clean;
    std::vector<double> wall;
    std::vector<double> processor;
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

class Bench {
   public:
    explicit Bench(Arguments arguments) : arguments_(std::move(arguments)) {
        StreamOptions cores;
        cores.threads = arguments_.threads;
        threads_ = worker_count(cores);
        words_.resize(arguments_.bytes / sizeof(float));
        std::uint64_t state = 88172645463325252ULL;
        for (float& x : words_) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            x = static_cast<float>(static_cast<double>(state >> 11) * 0x1p-53) * 4.F - 2.F;
        }
    }

    int run() {
        fs::remove_all(arguments_.folder);
        fs::create_directories(arguments_.folder);
        std::printf("%d threads, %.2f GB, %d rounds; folder %s\n", threads_,
                    static_cast<double>(arguments_.bytes) * 1e-9, arguments_.rounds,
                    arguments_.folder.c_str());
        add_writers();
        add_captures();
        for (std::size_t i = lines_.size(); i-- > 1;) {
            if (lines_[i].name.find(arguments_.only) == std::string::npos)
                lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(i));
        }
        for (int round = -1; round < arguments_.rounds; ++round) {
            for (std::size_t i = 0; i < lines_.size(); ++i)
                measure(lines_[(i + static_cast<std::size_t>(round + 1)) % lines_.size()], round);
        }
        sessions_.clear();
        fs::remove_all(arguments_.folder);
        print();
        return 0;
    }

   private:
    [[nodiscard]] std::string file(int number) const {
        return (fs::path(arguments_.folder) / ("plain-" + std::to_string(number))).string();
    }

    void write_parts(int files, int threads) {
        std::vector<int> open;
        for (int i = 0; i < files; ++i) {
            open.push_back(::open(file(i).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
            if (open.back() < 0) fail(file(i) + ": cannot be written");
        }
        const auto* const data = reinterpret_cast<const std::byte*>(words_.data());
        const std::uint64_t share = arguments_.bytes / static_cast<std::uint64_t>(threads) / kBlock * kBlock;
        std::vector<std::thread> team;
        for (int t = 0; t < threads; ++t) {
            team.emplace_back([&, t] {
                const std::uint64_t begin = static_cast<std::uint64_t>(t) * share;
                const std::uint64_t end = t + 1 == threads ? arguments_.bytes : begin + share;
                const std::uint64_t to = files == 1 ? 0 : begin;
                const int descriptor = open[files == 1 ? 0 : static_cast<std::size_t>(t)];
                for (std::uint64_t at = begin; at < end; at += kBlock) {
                    const std::uint64_t n = std::min(kBlock, end - at);
                    if (::pwrite(descriptor, data + at, n, static_cast<off_t>(at - to)) !=
                        static_cast<ssize_t>(n))
                        fail("a write failed");
                }
                if (::fsync(descriptor) != 0) fail("fsync failed");
            });
        }
        for (std::thread& thread : team)
            thread.join();
        for (const int descriptor : open)
            ::close(descriptor);
    }

    void add_writers() {
        const auto add = [&](const std::string& name, int files, int threads) {
            lines_.push_back({name,
                              [=, this](int) { write_parts(files, threads); },
                              [=, this](int) {
                                  for (int i = 0; i < files; ++i)
                                      fs::remove(file(i));
                              },
                              {},
                              {}});
        };
        add("a file a thread", threads_, threads_);
        add("one file, one thread", 1, 1);
        add("one file, all threads", 1, threads_);
    }

    void add_captures() {
        const std::string room = std::to_string(std::max<std::uint64_t>(arguments_.bytes * 5 / 4, 16 << 20));
        add_capture("capture, 4 bits", "4", room);
        add_capture("capture, no residues", "0", room);
        add_capture("capture, 4 bits, 64 MiB", "4", std::to_string(64 << 20));
    }

    void add_capture(const std::string& name, const std::string& bits, const std::string& memory) {
        SessionSettings settings;
        settings.history.tolerance.atol = 1e-5;
        settings.threads = arguments_.threads;
        settings.keep.steps = 1;
        must(settings.set("residue_bits", bits));
        must(settings.set("memory", memory));
        for (const auto& [key, value] : arguments_.settings)
            must(settings.set(key, value));
        const std::string path =
            (fs::path(arguments_.folder) / ("history-" + std::to_string(sessions_.size())));
        sessions_.push_back(must(Session::open(posix_file_system(), comm_, path, std::move(settings))));
        Session* const session = sessions_.back().get();
        lines_.push_back({name,
                          [=, this](int round) {
                              std::vector<CapturedField> fields(4);
                              for (std::size_t f = 0; f < fields.size(); ++f) {
                                  fields[f].name = "x" + std::to_string(f);
                                  fields[f].dtype = DType::f32;
                                  fields[f].shape = {words_.size() / 4};
                                  fields[f].data = words_.data() + f * (words_.size() / 4);
                              }
                              static_cast<void>(must(session->capture_fields(2 * round, fields)));
                              for (const LostStep& lost : must(session->wait()))
                                  fail(lost.error.message);
                          },
                          // The large step leaves when a small one is committed: not within the times.
                          [=](int round) {
                              float one = 1;
                              CapturedField field;
                              field.name = "one";
                              field.dtype = DType::f32;
                              field.shape = {1};
                              field.data = &one;
                              static_cast<void>(must(session->capture_fields(2 * round + 1, {field})));
                              must(session->wait());
                          },
                          {},
                          {}});
    }

    static void measure(Line& line, int round) {
        const double wall = Clocks::wall();
        const double processor = Clocks::processor();
        line.work(round);
        const double wall_end = Clocks::wall();
        const double processor_end = Clocks::processor();
        line.clean(round);
        if (round < 0) return;
        line.wall.push_back(wall_end - wall);
        line.processor.push_back(processor_end - processor);
    }

    void print() {
        const auto gigabytes = static_cast<double>(arguments_.bytes) * 1e-9;
        const double ceiling = gigabytes / median(lines_.front().wall);
        nlohmann::json all;
        std::printf("%-28s %8s %10s %14s\n", "", "GB/s", "of first", "processor s/GB");
        for (const Line& line : lines_) {
            const double rate = gigabytes / median(line.wall);
            std::printf("%-28s %8.2f %10.2f %14.3f\n", line.name.c_str(), rate, rate / ceiling,
                        median(line.processor) / gigabytes);
            all[line.name] = {{"wall", line.wall}, {"processor", line.processor}, {"gigabytes", gigabytes}};
        }
        if (!arguments_.json.empty()) std::ofstream(arguments_.json) << all.dump() << "\n";
    }

    Arguments arguments_;
    int threads_ = 1;
    std::vector<float> words_;
    SelfComm comm_;
    std::vector<std::unique_ptr<Session>> sessions_;
    std::vector<Line> lines_;
};

Arguments read(int argc, char** argv) {
    Arguments arguments;
    if (std::getenv("BENCHMARK_SMOKE") != nullptr) {
        arguments.bytes = 8 << 20;
        arguments.rounds = 1;
        arguments.folder = (fs::temp_directory_path() / ("twinrun-bench-folder-" + random_hex(8))).string();
    }
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name.starts_with("--benchmark")) continue;
        if (++i == argc) fail(name + ": a value is missing");
        const std::string value = argv[i];
        if (name == "--folder") {
            arguments.folder = value;
        } else if (name == "--bytes") {
            arguments.bytes = std::stoull(value);
        } else if (name == "--rounds") {
            arguments.rounds = std::stoi(value);
        } else if (name == "--threads") {
            arguments.threads = std::stoi(value);
        } else if (name == "--json") {
            arguments.json = value;
        } else if (name == "--only") {
            arguments.only = value;
        } else if (name == "--setting") {
            const std::size_t equals = value.find('=');
            if (equals == std::string::npos) fail(value + ": not NAME=VALUE");
            arguments.settings.emplace_back(value.substr(0, equals), value.substr(equals + 1));
        } else {
            fail(name + ": no such option");
        }
    }
    if (arguments.bytes < 16 || arguments.rounds < 1) fail("--bytes and --rounds must be larger");
    return arguments;
}

}  // namespace

int main(int argc, char** argv) { return Bench(read(argc, argv)).run(); }
