// Small collective writes that repeat: one rank of a node writes for all of them.
#pragma once

namespace program {

// Held against a model of the file; with calls between that are other ones, and with errors.
void writes_of_one_rank_for_all();

}  // namespace program
