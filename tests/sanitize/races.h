// Races on purpose: what the thread sanitiser must end a process for, each beside its right form.
#pragma once
#include <nanobind/nanobind.h>

void add_races(nanobind::module_& m);
