//! Tests of segmentation against frames that the testkit builds one by one, and against its oracle.

mod case;
mod cut;
mod device;
mod enumerated;
mod fragments;
mod judge;
mod properties;
mod refusals;
mod single;
mod trains;
mod tunnelled;
