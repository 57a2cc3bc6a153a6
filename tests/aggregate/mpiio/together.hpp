// Small collective writes that repeat: one rank of a node writes for all of them.
#pragma once

namespace program {

// Held against a model of the file; with calls between that are other ones, and with errors.
void writes_of_one_rank_for_all();
// Where ranks may make no file of some MB, Open MPI has no memory that they share: nobody waits for it.
void files_that_are_limited();

}  // namespace program
