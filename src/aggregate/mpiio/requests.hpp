// Nonblocking collective calls of one file that are under way. A thread carries them out one after
// the other, in the order in which the program made them, which is the same on all ranks. Each file
// has a thread of its own: ranks may make the calls of two files in different orders.
//
// The program has a generalized request of MPI for each call. The thread completes it.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "aggregate/mpiio/file.hpp"

namespace twinrun::mpiio {

struct Operation;

class Requests {
   public:
    explicit Requests(File& file) : file_(file) {}
    ~Requests();  // finish()
    Requests(const Requests&) = delete;
    Requests& operator=(const Requests&) = delete;

    // For MPI_File_iwrite_all and its kind, once File::takes_requests() allows it. Returns the code
    // that the program gets; where it is an error, the other ranks' calls go on without this rank's
    // data. Throws std::bad_alloc.
    int add(const Call& call, MPI_File handle, MPI_Request* request);
    // Waits until none is under way.
    void finish();
    [[nodiscard]] bool idle();

   private:
    void put(std::shared_ptr<Operation> operation);
    void work();

    File& file_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Operation>> waiting_;  // the first is being carried out
    bool over_ = false;
    std::thread thread_;
};

// Sleeps between two looks at something that another thread or MPI ends: longer each time.
class Nap {
   public:
    void take();

   private:
    long nanoseconds_ = 20'000;
};

}  // namespace twinrun::mpiio
