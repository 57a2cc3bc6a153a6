// SPDX-License-Identifier: Apache-2.0
// A way to bring particles into files, and back.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "haccio/layout.hpp"
#include "haccio/options.hpp"
#include "haccio/particles.hpp"

namespace haccio {

// What one rank could not do. All collective calls that others wait in have been made when it is
// thrown.
struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The ranks of one file.
struct FileGroup {
    MPI_Comm comm = MPI_COMM_NULL;
    int file = 0, files = 1;  // which, of how many
    int rank = 0, ranks = 1;  // in comm
};
// PATH, or PATH.00002 where there are several.
std::string file_path(const std::string& path, const FileGroup& group);

// Seconds by phase, in the order of their first appearance, which is the same on all ranks.
class Stopwatch {
   public:
    // Since the last lap or the start.
    void lap(const char* phase);
    [[nodiscard]] const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }

   private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point last_ = Clock::now();
    std::vector<std::pair<std::string, double>> phases_;
};

class Method {
   public:
    Method() = default;
    Method(const Method&) = delete;
    Method& operator=(const Method&) = delete;
    virtual ~Method() = default;

    // All are collective, and throw Failure; then the phases mean nothing. path: of the group's
    // file, but for prefix_path().
    virtual void declare() {}
    virtual void write(const std::string& path, Stopwatch& watch) = 0;
    virtual void read(const std::string& path, Stopwatch& watch) = 0;

    [[nodiscard]] virtual FileGroup group() const = 0;
    // Names the files of all groups by itself.
    [[nodiscard]] virtual bool prefix_path() const { return false; }
    // Leaves a file; leaves particles in it, which can be checked.
    [[nodiscard]] virtual bool has_file() const { return true; }
    [[nodiscard]] virtual bool stores() const { return true; }
    // What it has to say about the last operation: a JSON text, or nothing. On the first rank.
    [[nodiscard]] virtual std::string details() { return {}; }
};

// [collective] Throws Failure. particles: outlive the method.
std::unique_ptr<Method> make_method(const MethodChoice& choice, const Options& options, Particles& particles,
                                    MPI_Comm world);
std::unique_ptr<Method> make_aggregate(const MethodChoice& choice, const Options& options,
                                       Particles& particles, MPI_Comm world);
std::unique_ptr<Method> make_mpiio(const MethodChoice& choice, const Options& options, Particles& particles,
                                   MPI_Comm world);
std::unique_ptr<Method> make_posix(const MethodChoice& choice, const Options& options, Particles& particles,
                                   MPI_Comm world);
std::unique_ptr<Method> make_ceiling(const MethodChoice& choice, const Options& options, Particles& particles,
                                     MPI_Comm world);

// The group of a method that does not form its own; freed with it.
class OwnGroup {
   public:
    // [collective] files: "one", "node", "rank".
    OwnGroup(const std::string& files, MPI_Comm world);
    OwnGroup(const OwnGroup&) = delete;
    OwnGroup& operator=(const OwnGroup&) = delete;
    ~OwnGroup();
    [[nodiscard]] const FileGroup& get() const { return group_; }

   private:
    FileGroup group_;
};

// [collective over the group]
Share share_of(const FileGroup& group, std::uint64_t particles);

}  // namespace haccio
