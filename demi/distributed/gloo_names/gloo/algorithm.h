#pragma once
// c10d's header of its Gloo backend includes Gloo's headers, which LibTorch does not ship, though
// it holds Gloo. The files of this folder declare what that header names. demi never makes, reads
// or destroys an object of these types: LibTorch's own functions do.
